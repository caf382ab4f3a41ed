"""Cases of ``cases.md`` about text, through the whole server: DT-1, DT-4, ST-1, TT-1 and TT-3.

The device says the prompt again (``echo``), so that a prompt given as token ids is the script of the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from stepwell.tests.transports.house import chat, client, error_of, events, make_service
from stepwell.transports.service import Service
from stepwell.transports.templates import ChatPrompt


class Pieces:
    """A tokenizer whose tokens are numbered in the order of a script; ``strips`` takes off an answer's first space."""

    end_tokens: frozenset[int] = frozenset()

    def __init__(self, pieces: Sequence[bytes], *, strips: bool = False) -> None:
        self.pieces, self.strips, self.vocab_size = pieces, strips, len(pieces)

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        raise NotImplementedError

    def token_bytes(self, token: int) -> bytes:
        return self.pieces[token]

    def decode(self, tokens: Sequence[int]) -> bytes:
        whole = b"".join(self.pieces[token] for token in tokens)
        return whole[1:] if self.strips and whole.startswith(b" ") else whole


def told(pieces: Sequence[bytes], *, strips: bool = False, **wants: Any) -> tuple[list[str], str]:
    """The deltas of a streamed answer and why it ended; unstreamed gives the same text and end, which is checked."""
    service = make_service(tokenizer=Pieces(pieces, strips=strips))
    body = {"prompt": list(range(len(pieces))), "max_tokens": len(pieces), **wants}
    with client(service) as http:
        whole = http.post("/v1/completions", json=body).json()["choices"][0]
        chunks = events(http.post("/v1/completions", json={**body, "stream": True}).text)
    deltas = [chunk["choices"][0]["text"] for chunk in chunks]
    (reason,) = [chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk["choices"][0]["finish_reason"]]
    assert ("".join(deltas), reason) == (whole["text"], whole["finish_reason"])
    return deltas, reason


# ------------------------------------------------------------------------------------------------ characters, spaces

EMOJI = [
    [b"\xf0\x9f\x98", b"\x80"],
    [b"\xf0\x9f", b"\xa4", b"\xa3"],
    [b"\xc4", b"\x8f"],
    [bytes([each]) for each in bytes.fromhex("f09f91a9e2808df09f9a80")],
]


@pytest.mark.parametrize("pieces", [*EMOJI, [piece for each in EMOJI for piece in each]])
def test_dt_1_streamed_characters_are_whole(pieces: list[bytes]) -> None:
    """Tokens that only buffer bytes send no chunk with text, and no delta holds a replacement mark."""
    deltas, _ = told(pieces)
    assert "".join(deltas) == b"".join(pieces).decode()
    assert "\ufffd" not in "".join(deltas)
    assert all(deltas[:-1]), deltas


def test_dt_4_a_completion_keeps_its_first_space() -> None:
    """'▁the', '▁cat', 's', '▁sat' after a prompt that ends in a letter."""
    pieces = [b" the", b" cat", b"s", b" sat"]
    assert "".join(told(pieces, strips=True)[0]) == " the cats sat"


def test_dt_4_a_chat_answer_is_the_tokenizers_own_result() -> None:
    pieces = Pieces([b" the", b" cat", b"s", b" sat"], strips=True)

    def template(messages: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any]) -> list[int]:
        return [0, 1, 2, 3]

    with client(make_service(tokenizer=pieces, template=template)) as http:
        whole = http.post("/v1/chat/completions", json=chat()).json()["choices"][0]["message"]["content"]
        chunks = events(http.post("/v1/chat/completions", json=chat(stream=True)).text)
        streamed = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    assert whole == streamed == pieces.decode([0, 1, 2, 3]).decode() == "the cats sat"


# ------------------------------------------------------------------------------------------------ stop strings


def test_st_1_a_stop_string_over_three_tokens_is_neither_sent_nor_missed() -> None:
    deltas, reason = told([b" al", b"pha", b" be", b"ta gam", b"ma!"], stop=["beta gamma"])
    assert ("".join(deltas), reason) == (" alpha ", "stop")


def test_st_1_of_overlapping_stops_the_earlier_start_wins() -> None:
    for pieces in ([b"xaaab"], [b"x", b"a", b"a", b"a", b"b"]):
        deltas, reason = told(pieces, stop=["aab", "ab"])
        assert ("".join(deltas), reason) == ("xa", "stop")


# ------------------------------------------------------------------------------------------------ templates

SPECIAL = {"<s>": 256, "</s>": 257}


class Bytes:
    """Bytes are tokens, and so are two names; ``add_bos`` is the tokenizer's own wish."""

    vocab_size = 258
    end_tokens = frozenset([257])
    special_tokens = SPECIAL
    bos_token, eos_token = "<s>", "</s>"

    def __init__(self, template: str, *, add_bos: bool = False) -> None:
        self.chat_template, self.add_bos = template, add_bos

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        if not special:
            return list(text.encode())
        names = [name for name in SPECIAL if name in text]
        if not names:
            return list(text.encode())
        before, name, after = text.partition(min(names, key=text.index))
        return [*before.encode(), SPECIAL[name], *self.encode(after, special=True)]

    def prompt(self, text: str) -> list[int]:
        return self.with_bos(self.encode(text))

    def with_bos(self, tokens: Sequence[int]) -> list[int]:
        return [256, *tokens] if self.add_bos and tokens[:1] != [256] else list(tokens)

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b""

    def decode(self, tokens: Sequence[int]) -> bytes:
        return b"".join(map(self.token_bytes, tokens))


@contextmanager
def templated(template: str, *, add_bos: bool = False) -> Iterator[Service]:
    tokenizer = Bytes(template, add_bos=add_bos)
    prompt = ChatPrompt(tokenizer)
    try:
        yield make_service(tokenizer=tokenizer, template=prompt, encode=tokenizer.prompt)
    finally:
        prompt.close()


@pytest.mark.parametrize("add_bos", [True, False])
@pytest.mark.parametrize("writes", [True, False])
def test_tt_3_all_endpoints_agree_on_one_bos(writes: bool, add_bos: bool) -> None:
    """Exactly one BOS when either side asks for it, none when neither does; ``prompt_tokens`` counts it."""
    template = ("{{ bos_token }}" if writes else "") + "{{ messages[0].content }}"
    with templated(template, add_bos=add_bos) as service, client(service) as http:
        chatted = http.post("/v1/chat/completions", json=chat("hi", max_tokens=3)).json()
        assert chatted["usage"]["prompt_tokens"] == 2 + (writes or add_bos)
        for echo in (False, True):
            body = {"prompt": "hi", "max_tokens": 1, "echo": echo}
            completed = http.post("/v1/completions", json=body).json()
            assert completed["usage"]["prompt_tokens"] == 2 + add_bos
            said = "hi" if echo else ""
            assert completed["choices"][0]["text"] == said + ("" if add_bos else "h")
        given = http.post("/v1/completions", json={"prompt": [256, *b"hi"], "max_tokens": 1}).json()
        assert given["usage"]["prompt_tokens"] == 3


def test_tt_3_two_specials_that_a_template_begins_with_are_left_alone() -> None:
    with templated("<s></s>{{ messages[0].content }}", add_bos=True) as service, client(service) as http:
        chatted = http.post("/v1/chat/completions", json=chat("hi", max_tokens=1)).json()
        assert chatted["usage"]["prompt_tokens"] == 4


def test_tt_1_a_template_that_reaches_for_the_machine_is_refused_over_http(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    with (
        templated(f"{{{{ cycler.__init__.__globals__.os.system('touch {canary}') }}}}") as service,
        client(service) as http,
    ):
        status, code, field = error_of(http.post("/v1/chat/completions", json=chat("hi")))
        assert (status, code, field) == (400, "invalid_value", "chat_template")
        assert http.post("/v1/completions", json={"prompt": "hi", "max_tokens": 1}).status_code == 200
    assert not canary.exists()


def test_tt_1_a_template_in_a_request_is_not_used() -> None:
    with templated("{{ messages[0].content }}") as service, client(service) as http:
        for extra in ({"chat_template": "evil"}, {"chat_template_kwargs": {"chat_template": "evil"}}):
            answer = http.post("/v1/chat/completions", json=chat("hi", **extra)).json()
            assert answer["choices"][0]["message"]["content"] == "hi"


def test_tt_1_templates_are_rendered_in_one_place() -> None:
    root = Path(__file__).parents[2]
    rooms = ("core", "policies", "memory", "sim", "backends", "transports", "cli")
    users = [
        str(file.relative_to(root))
        for room in rooms
        for file in sorted((root / room).rglob("*.py"))
        if any(line.strip().startswith(("import jinja2", "from jinja2")) for line in file.read_text().splitlines())
    ]
    assert users == ["transports/template_worker.py"]
