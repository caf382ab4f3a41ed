"""``/tokenize`` and ``/detokenize``: in vLLM's shapes, of texts, chats and special tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from stepwell.tests.transports.house import client, error_of, make_service
from stepwell.transports.chat import Message


class Special:
    """Bytes, of which two stand for names."""

    vocab_size = 256
    end_tokens: frozenset[int] = frozenset()
    special_tokens = {"<s>": 1, "</s>": 2}

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        return list(text.encode())

    def token_bytes(self, token: int) -> bytes:
        return bytes((token,)) if token > 2 else b""

    def decode(self, tokens: Sequence[int]) -> bytes:
        return b"".join(map(self.token_bytes, tokens))


def template(messages: Sequence[Message], arguments: Mapping[str, Any]) -> list[int]:
    told = "".join(each["function"]["name"] for each in arguments.get("tools", ()))
    return [1, *"".join(each["content"] for each in messages).encode(), *told.encode()]


def served(**settings: Any) -> Any:
    given: dict[str, Any] = {
        "tokenizer": Special(),
        "encode": lambda text: [1, *text.encode()],
        "template": template,
        "chat_template": "{{ tools }}<tool_call>",
    }
    return client(make_service(**given | settings))


def test_a_text_with_and_without_what_it_begins_with() -> None:
    with served() as http:
        answer = http.post("/tokenize", json={"model": "echo", "prompt": "hé"})
        assert answer.json() == {"count": 4, "max_model_len": 1600, "tokens": [1, 104, 195, 169], "token_strs": None}
        answer = http.post("/tokenize", json={"prompt": "hi", "add_special_tokens": False, "return_token_strs": True})
        assert (answer.json()["tokens"], answer.json()["token_strs"]) == ([104, 105], ["h", "i"])
        assert http.post("/tokenize", json={"prompt": ""}).json()["tokens"] == [1]


def test_tt_3_a_chat_is_what_its_answer_would_be_computed_from() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    with served() as http:
        answer = http.post("/tokenize", json={"messages": messages, "return_token_strs": True}).json()
        assert answer["token_strs"] == ["<s>", "h", "i"]
        usage = http.post("/v1/chat/completions", json={"messages": messages}).json()["usage"]
        assert usage["prompt_tokens"] == answer["count"] == 3
        answer = http.post("/tokenize", json={"messages": messages, "tools": tools}).json()
        assert answer["tokens"] == [1, 104, 105, 102]


def test_there_and_back_again() -> None:
    with served() as http:
        for text in ("hello", "grüß dich 🙂", "", "x" * 20_000):
            tokens = http.post("/tokenize", json={"prompt": text}).json()["tokens"]
            assert http.post("/detokenize", json={"tokens": tokens}).json() == {"prompt": "<s>" + text}
        assert http.post("/detokenize", json={"model": "echo", "tokens": [2]}).json() == {"prompt": "</s>"}


def test_more_than_the_context_is_counted_too() -> None:
    with served(memory={"pages": 2}) as http:
        answer = http.post("/tokenize", json={"prompt": "x" * 10_000}).json()
        assert (answer["count"], answer["max_model_len"]) == (10_001, 8)


@pytest.mark.parametrize(
    ("path", "fields", "field"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": []}, "prompt"),
        ("/tokenize", {"prompt": 7}, "prompt"),
        ("/tokenize", {"prompt": ["x"]}, "prompt"),
        ("/tokenize", {"messages": "x"}, "messages"),
        ("/tokenize", {"messages": [{"role": "user"}], "x": 1}, "messages[0].content"),
        ("/tokenize", {"prompt": "x", "add_special_tokens": "yes"}, "add_special_tokens"),
        (
            "/tokenize",
            {"messages": [{"role": "user", "content": "x"}], "add_generation_prompt": False},
            "add_generation_prompt",
        ),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [256]}, "tokens"),
        ("/detokenize", {"tokens": [1.5]}, "tokens"),
    ],
)
def test_in_4_what_is_wrong_is_named(path: str, fields: dict[str, Any], field: str) -> None:
    with served() as http:
        status, _, named = error_of(http.post(path, json=fields))
        assert (status, (named or "").partition("[")[0]) == (400, field.partition("[")[0])


def test_another_model_is_not_found() -> None:
    with served() as http:
        for path, fields in (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [3]})):
            assert error_of(http.post(path, json={**fields, "model": "gpt"}))[0] == 404
