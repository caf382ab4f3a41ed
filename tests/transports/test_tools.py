"""Tools, calls and reasoning over ``/v1/chat/completions``: the echo model says what a model would, to the letter."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from openai import OpenAI

from stepwell.core.parsing import ToolCall
from stepwell.core.registry import load, make
from stepwell.tests.transports.house import chat, client, error_of, events, idle, make_service
from stepwell.transports.chat import Message
from stepwell.transports.service import Service

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TIME = {"type": "function", "function": {"name": "time"}}
TOOLS = [WEATHER, TIME]
CALLS = [ToolCall("weather", '{"city": "Zürich {\\"}", "when": [1, {"x": null}]}'), ToolCall("time", "{}")]
FAMILIES = ["hermes", "llama3", "mistral", "deepseek", "smollm2"]


def service_of(family: str = "hermes", **settings: Any) -> Service:
    return make_service(parsers={"tool_parser": family}, **settings)


def written(family: str = "hermes", calls: Sequence[ToolCall] = CALLS) -> str:
    text: str = make("tool_parsers", family).write(calls)
    return text


def sdk(http: Any) -> OpenAI:
    return OpenAI(base_url="http://testserver/v1", api_key="none", max_retries=0, http_client=http)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_sdk_accumulates_whole_calls(family: str) -> None:
    """Streamed argument by argument, and not."""
    asked: dict[str, Any] = {
        "model": "echo",
        "messages": [{"role": "user", "content": "Sure. " + written(family)}],
        "tools": TOOLS,
    }
    with client(service_of(family, step_us=500)) as http:
        whole = sdk(http).chat.completions.create(**asked)
        with sdk(http).chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
            seen = [each.type for each in stream]
            streamed = stream.get_final_completion()
    for answer in (whole, streamed):
        choice = answer.choices[0]
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "Sure."
        calls = choice.message.tool_calls
        assert calls is not None
        assert [(each.function.name, each.function.arguments) for each in calls if each.type == "function"] == [
            (each.name, each.arguments) for each in CALLS
        ]
        ids = {each.id for each in calls}
        assert len(ids) == 2
        assert all(len(each) == 9 and each.isalnum() for each in ids)
    assert seen.count("tool_calls.function.arguments.delta") > 2
    assert seen.count("tool_calls.function.arguments.done") == 2


def test_arguments_come_as_they_are_written() -> None:
    with client(service_of(step_us=500)) as http:
        chunks = events(http.post("/v1/chat/completions", json=chat(written(), tools=TOOLS, stream=True)).text)
    deltas = [each["choices"][0]["delta"].get("tool_calls", [{}])[0] for each in chunks]
    began = [each for each in deltas if "id" in each]
    assert [(each["index"], each["type"], each["function"]) for each in began] == [
        (0, "function", {"name": "weather", "arguments": ""}),
        (1, "function", {"name": "time", "arguments": ""}),
    ]
    parts = [each["function"]["arguments"] for each in deltas if each and "id" not in each and each["index"] == 0]
    assert "".join(parts) == CALLS[0].arguments
    assert len(parts) > 2
    assert all("content" not in each["choices"][0]["delta"] for each in chunks[1:])
    assert chunks[-1]["choices"][0] == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "tool_calls"}


@pytest.mark.parametrize(
    "fields", [{}, {"tools": []}, {"tools": TOOLS, "tool_choice": "none"}, {"tool_choice": "auto"}]
)
def test_without_tools_the_text_is_content(fields: dict[str, Any]) -> None:
    with client(service_of()) as http:
        choice = http.post("/v1/chat/completions", json=chat(written(), **fields)).json()["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": written(), "refusal": None}
    assert choice["finish_reason"] == "stop"


def test_a_call_that_is_cut_off_ends_with_length() -> None:
    size = len(written().partition("Zürich")[0].encode())
    with client(service_of()) as http:
        asked = chat(written(), tools=TOOLS, max_tokens=size)
        choice = http.post("/v1/chat/completions", json=asked).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": '{"city": "'}
    assert choice["message"]["content"] is None


@pytest.mark.parametrize("stream", [True, False])
def test_one_call_at_a_time_ends_with_the_first(stream: bool) -> None:
    service = service_of()
    with client(service) as http:
        asked = chat("x" + written(), tools=TOOLS, parallel_tool_calls=False, stream=stream)
        answer = http.post("/v1/chat/completions", json=asked | {"stream_options": {"include_usage": True}})
        chunks = events(answer.text) if stream else [answer.json()]
    usage = chunks[-1]["usage"]
    assert usage["completion_tokens"] == len(("x" + written()).partition("}]}")[0].encode()) + 3
    assert usage["completion_tokens"] < len(written())
    text = json.dumps(chunks)
    assert '"weather"' in text
    assert '"time"' not in text
    assert idle(service)


def test_several_choices_call_each_for_itself() -> None:
    with client(service_of()) as http:
        answer = http.post("/v1/chat/completions", json=chat(written(), tools=TOOLS, n=3)).json()
        chunks = events(http.post("/v1/chat/completions", json=chat(written(), tools=TOOLS, n=3, stream=True)).text)
    ids = [call["id"] for choice in answer["choices"] for call in choice["message"]["tool_calls"]]
    assert len(set(ids)) == 6
    for index in range(3):
        deltas = [each["choices"][0]["delta"] for each in chunks if each["choices"][0]["index"] == index]
        calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
        assert "".join(each["function"]["arguments"] for each in calls if each["index"] == 0) == CALLS[0].arguments
        assert [each["index"] for each in calls if "id" in each] == [0, 1]


def test_a_stop_string_ends_a_call_too() -> None:
    with client(service_of()) as http:
        choice = http.post("/v1/chat/completions", json=chat(written(), tools=TOOLS, stop="Zür")).json()["choices"][0]
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"city": "'
    assert choice["finish_reason"] == "tool_calls"


# ------------------------------------------------------------------------------------------------ what the model sees


class Template:
    """Remembers what it was called with."""

    def __init__(self) -> None:
        self.messages: Sequence[Message] = ()
        self.arguments: Mapping[str, Any] = {}

    def __call__(self, messages: Sequence[Message], arguments: Mapping[str, Any]) -> list[int]:
        self.messages, self.arguments = messages, arguments
        return list(b"ok")


def test_the_template_is_told_of_tools_and_of_calls_before() -> None:
    template = Template()
    service = make_service(template=template, chat_template="{% if tools %}<tool_call>{% endif %}")
    call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "hm"},
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "rain"}]},
    ]
    with client(service) as http:
        answer = http.post("/v1/chat/completions", json={"messages": messages, "tools": TOOLS})
        assert answer.status_code == 200
        assert template.arguments == {"tools": TOOLS}
        assert template.messages == [
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [call]},
            {"role": "tool", "content": "rain", "tool_call_id": "a"},
        ]
        http.post("/v1/chat/completions", json={"messages": messages, "tools": TOOLS, "tool_choice": "none"})
        assert template.arguments == {}
        http.post("/v1/chat/completions", json={"messages": messages, "reasoning_effort": "none"})
        assert template.arguments == {"reasoning_effort": "none", "enable_thinking": False}


def test_a_template_that_says_nothing_of_tools_is_helped_out() -> None:
    template = Template()
    service = make_service(template=template, chat_template="You are named SmolLM")
    with client(service) as http:
        for messages in ([{"role": "user", "content": "Hi"}], [{"role": "system", "content": "Be kind."}]):
            http.post("/v1/chat/completions", json={"messages": messages, "tools": TOOLS})
            first = template.messages[0]
            assert first["role"] == "system"
            assert '"name": "weather"' in first["content"]
            assert first["content"].startswith("Be kind.") == (messages[0]["role"] == "system")


# ------------------------------------------------------------------------------------------------ what is wrong


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"tools": [{"type": "retrieval"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "no spaces"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": "x"}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": "x"}, "tools"),
        ({"tools": [TIME] * 129}, "tools"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": 7}, "tool_choice"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}},
            "tool_choice.function.name",
        ),
        ({"tools": TOOLS, "parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ],
)
def test_in_4_a_wrong_tool_is_named(fields: dict[str, Any], field: str) -> None:
    with client(service_of()) as http:
        assert error_of(http.post("/v1/chat/completions", json=chat(**fields))) == (400, "invalid_value", field)


def test_in_4_a_deep_schema_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(200):
        schema = {"properties": {"a": schema}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    with client(service_of()) as http:
        told = error_of(http.post("/v1/chat/completions", json=chat(tools=[tool])))
    assert told == (400, "invalid_value", "tools[0].function.parameters")


def test_a_model_that_calls_no_tools_says_so() -> None:
    with client(make_service()) as http:
        assert error_of(http.post("/v1/chat/completions", json=chat(tools=TOOLS))) == (400, "invalid_value", "tools")
        assert http.post("/v1/chat/completions", json=chat(tools=TOOLS, tool_choice="none")).status_code == 200


# ------------------------------------------------------------------------------------------------ reasoning


def thinking(**settings: Any) -> Service:
    return make_service(parsers={"reasoning_parser": "think", "tool_parser": "hermes"}, **settings)


THOUGHT = "<think>\nHm. 2?\n</think>\n\nTwo."


@pytest.mark.parametrize("stream", [True, False])
def test_reasoning_is_apart_and_its_tokens_are_counted(stream: bool) -> None:
    with client(thinking()) as http:
        asked = chat(THOUGHT + written(), tools=TOOLS, stream=stream, stream_options={"include_usage": True})
        answer = http.post("/v1/chat/completions", json=asked)
        chunks = events(answer.text) if stream else [answer.json()]
    if stream:
        deltas = [each["choices"][0]["delta"] for each in chunks if each["choices"]]
        made = {name: "".join(each.get(name) or "" for each in deltas) for name in ("content", "reasoning_content")}
    else:
        made = chunks[0]["choices"][0]["message"]
    assert (made["reasoning_content"], made["content"]) == ("Hm. 2?", "Two.")
    usage = chunks[-1]["usage"]
    # From the letter that completes the first mark to the one that completes the second.
    assert usage["completion_tokens_details"] == {"reasoning_tokens": len("\nHm. 2?\n</think>") + 1}


def test_a_prompt_that_begins_the_reasoning() -> None:
    def template(messages: Sequence[Message], arguments: Mapping[str, Any]) -> list[int]:
        return list(f"{messages[-1]['content']}<think>\n".encode())

    with client(thinking(template=template)) as http:
        message = http.post("/v1/chat/completions", json=chat("Hm.</think>")).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "<think>\n")


def test_without_marks_of_it_nobody_reads() -> None:
    service = make_service()
    assert service.parsers.chats() is None
    assert service.parsers.tools is None
    seen = make_service(chat_template="<think>").parsers
    assert type(seen.reasoning) is load("reasoning_parsers", "think")
    for mark, family in (("[TOOL_CALLS]", "mistral"), ("<tool_call>", "hermes"), ("<|python_tag|>", "llama3")):
        assert type(make_service(chat_template=mark).parsers.tools) is load("tool_parsers", family)
    off = make_service(chat_template="<think><tool_call>", parsers={"tool_parser": "none", "reasoning_parser": "none"})
    assert (off.parsers.tools, off.parsers.reasoning) == (None, None)


class Special:
    """A byte tokenizer in which a few numbers stand for marks, and have no text of their own."""

    vocab_size = 256
    end_tokens: frozenset[int] = frozenset()
    special_tokens = {"[TOOL_CALLS]": 1, "[THINK]": 2, "[/THINK]": 3}

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        return list(text.encode())

    def token_bytes(self, token: int) -> bytes:
        return bytes((token,)) if token > 3 else b""

    def decode(self, tokens: Sequence[int]) -> bytes:
        return b"".join(map(self.token_bytes, tokens))


def test_marks_that_are_special_tokens_are_seen_where_they_are_read() -> None:
    def template(messages: Sequence[Message], arguments: Mapping[str, Any]) -> list[int]:
        return list(b'\x02why\x03\x01[{"name": "f", "arguments": {}}]')

    service = make_service(tokenizer=Special(), template=template, chat_template="[TOOL_CALLS] [THINK]")
    with client(service) as http:
        message = http.post("/v1/chat/completions", json=chat(tools=TOOLS)).json()["choices"][0]["message"]
    assert message["reasoning_content"] == "why"
    assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}
