"""Text that is made when somebody takes it is what it would have been at once: whole, in order, and nobody else's."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from stepwell.core.instructions import Finished
from stepwell.core.streams import Stream
from stepwell.core.text import StopStrings, TextPipeline
from stepwell.tests.core.test_text import Script
from stepwell.tests.transports.house import Call, chat, events, make_service, visit
from stepwell.tests.transports.responding import URL, create, framed, house, said
from stepwell.transports.echo import ByteTokenizer
from stepwell.transports.generation import LATE, Choice

PIECES = [b"a", b" ", b"", "é".encode()[:1], "é".encode()[1:], "\N{GRINNING FACE}".encode()[:2], b"\xff", b"xy"]


def whole(pieces: list[bytes], stops: list[str]) -> tuple[str, int | None]:
    """The naive one: a token at a time, and where it stops."""
    pipeline = TextPipeline(Script(pieces), stops=StopStrings(stops))
    text = "".join([pipeline.feed((token,)) for token in range(len(pieces))])
    return text + pipeline.finish(), pipeline.stop_at


@given(
    st.lists(st.sampled_from(PIECES), max_size=3 * LATE),
    st.lists(st.integers(1, LATE + 9), max_size=40),
    st.sampled_from([[], ["aa"], ["yx", "é"]]),
)
def test_whenever_it_is_taken_it_is_the_same(pieces: list[bytes], turns: list[int], stops: list[str]) -> None:
    """``turns``: after how many tokens somebody takes what there is."""
    stopped: list[int] = []
    stream = Stream(1, lambda request: None)
    choice = Choice(0, [0], stream, TextPipeline(Script(pieces), stops=StopStrings(stops)))
    news: list[int] = []
    choice.listen(lambda request, keep: stopped.append(keep), lambda: news.append(len(stream.tokens)), lambda: None)
    taken, at = [], 0
    for turn in turns:
        for token in range(at, min(at + turn, len(pieces))):
            stream.push(token)
        at += turn
        taken.append(choice.take())
        assert choice.untaken == 0
    for token in range(at, len(pieces)):
        stream.push(token)
    text, stop_at = whole(pieces, stops)
    assert stopped == ([] if stop_at is None else [stop_at]), "told of at once, taken or not"
    assert news == list(range(1, (len(pieces) if stop_at is None else stop_at) + 1))
    stream.finish(Finished(1, "stop", len(pieces) if stop_at is None else stop_at))
    taken.append(choice.take())
    assert "".join(each for each, _, _ in taken) == choice.text == text
    assert [start for _, start, _ in taken[1:]] == [stop for _, _, stop in taken[:-1]]
    assert taken[-1][2] == choice.tokens == (len(pieces) if stop_at is None else stop_at)


def test_hs_1_few_tokens_wait_without_being_counted() -> None:
    stream = Stream(1, lambda request: None)
    choice = Choice(0, [0], stream, TextPipeline(Script([b"abc"] * 1000)))
    choice.listen(lambda request, keep: None, lambda: None, lambda: None)
    for token in range(1000):
        stream.push(token)
        assert 3 * (token + 1) - 3 * LATE <= choice.untaken <= 3 * (token + 1)


class Broken(ByteTokenizer):
    """Does not know one of its tokens, once the server has started."""

    starting = True

    def token_bytes(self, token: int) -> bytes:
        if token == ord("!") and not self.starting:
            raise ValueError("no such token")
        return super().token_bytes(token)


def test_a_tokenizer_s_fault_ends_its_own_answer_and_says_so() -> None:
    service = make_service(tokenizer=Broken())
    service.model.tokenizer.starting = False  # type: ignore[attr-defined]

    async def test(app: Any) -> None:
        good, bad = Call("/v1/chat/completions", chat("abc", stream=True)), None
        for stream in (True, False):
            bad = Call("/v1/chat/completions", chat("ab!c", stream=stream))
            await bad.run(app)
            assert "internal_error" in bad.text, bad.text
            assert ('"content":"a' in bad.text) is stream, "what came before is the client's"
        await good.run(app)
        assert "".join(each["choices"][0]["delta"].get("content", "") for each in events(good.text)) == "abc"

    visit(service, test)


def test_a_tokenizer_s_fault_ends_its_own_response_once() -> None:
    service = house()
    broken = Broken()
    broken.starting = False
    service.model.tokenizer.token_bytes = broken.token_bytes  # type: ignore[method-assign]

    async def test(app: Any) -> None:
        bad, good = Call(URL, create("ab!c", stream=True)), Call(URL, create("abc", stream=True))
        await bad.run(app)
        told = framed(bad.text)
        assert [each["type"] for each in told].count("response.failed") == 1
        assert told[-1]["type"] == "response.failed"
        await good.run(app)
        assert said(framed(good.text)) == "abc"

    visit(service, test)
