"""Tokens to text: whole characters, stop strings, the first space; the same for any chunking."""

from __future__ import annotations

import gc
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stepwell.core.errors import UserError
from stepwell.core.text import Opening, StopStrings, TextPipeline
from stepwell.tests.helpers.effort import effort


class Script:
    """A tokenizer whose tokens are numbered in the order of a script; ``strips`` takes off an answer's first space."""

    def __init__(self, pieces: Sequence[bytes], *, strips: bool = False) -> None:
        self.pieces = pieces
        self.strips = strips

    @property
    def vocab_size(self) -> int:
        return len(self.pieces)

    end_tokens: frozenset[int] = frozenset()

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        raise NotImplementedError

    def token_bytes(self, token: int) -> bytes:
        return self.pieces[token]

    def decode(self, tokens: Sequence[int]) -> bytes:
        whole = b"".join(self.pieces[token] for token in tokens)
        return whole[1:] if self.strips and whole.startswith(b" ") else whole


def run(
    pieces: Sequence[bytes],
    sizes: Sequence[int] = (1,),
    *,
    stops: Sequence[str] = (),
    include_stop: bool = False,
    min_tokens: int = 0,
    hidden: Sequence[int] = (),
    opening: Opening = "answer",
    strips: bool = False,
) -> tuple[list[str], TextPipeline]:
    """The deltas of a script fed in pieces of these sizes, over and over, and the pipeline at the end."""
    pipeline = TextPipeline(
        Script(pieces, strips=strips),
        stops=StopStrings(stops),
        include_stop=include_stop,
        min_tokens=min_tokens,
        hidden=hidden,
        opening=opening,
    )
    deltas, at, turn = [], 0, 0
    while at < len(pieces):
        size = sizes[turn % len(sizes)]
        deltas.append(pipeline.feed(range(at, min(at + size, len(pieces)))))
        at, turn = at + size, turn + 1
        assert pipeline.sent == len("".join(deltas))
    deltas.append(pipeline.finish())
    assert pipeline.sent == len("".join(deltas))
    assert pipeline.finish() == ""
    return deltas, pipeline


def words(*texts: str) -> list[bytes]:
    return [text.encode() for text in texts]


# ------------------------------------------------------------------------------------------------ characters


EMOJI = [
    [b"\xf0\x9f\x98", b"\x80"],
    [b"\xf0\x9f", b"\xa4", b"\xa3"],
    [b"\xc4", b"\x8f"],
    [bytes([each]) for each in bytes.fromhex("f09f91a9e2808df09f9a80")],
]


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("pieces", [*EMOJI, [piece for each in EMOJI for piece in each]])
def test_dt_1_characters_whose_bytes_straddle_tokens(pieces: list[bytes], size: int) -> None:
    deltas, _ = run(pieces, [size])
    assert "".join(deltas) == b"".join(pieces).decode()
    assert "\ufffd" not in "".join(deltas)


def test_dt_1_tokens_that_only_buffer_bytes_send_nothing() -> None:
    assert run(EMOJI[3])[0] == ["", "", "", "👩", "", "", "\u200d", "", "", "", "🚀", ""]


def test_dt_1_replacement_marks_stand_for_invalid_bytes_only() -> None:
    assert run([b"a\xff", b"\xe2\x82", b"b\xc3"])[0] == ["a\ufffd", "", "\ufffdb", ""]


def test_dt_1_a_character_cut_off_by_the_end_is_dropped() -> None:
    assert "".join(run([b"ok \xf0\x9f", b"\x98"])[0]) == "ok "


# ------------------------------------------------------------------------------------------------ the first space


@pytest.mark.parametrize("size", [1, 3, 8])
def test_dt_4_first_space_of_an_answer_and_of_a_continuation(size: int) -> None:
    pieces = words(" the", " cat", "s", " sat")
    assert "".join(run(pieces, [size], strips=True, opening="continuation")[0]) == " the cats sat"
    assert "".join(run(pieces, [size], strips=True)[0]) == "the cats sat"
    assert "".join(run(pieces, [size])[0]) == " the cats sat"


@pytest.mark.parametrize("size", [1, 2, 5])
def test_dt_4_only_one_space_goes_and_hidden_tokens_do_not_count(size: int) -> None:
    assert "".join(run([b"", b" ", b" the", b" end"], [size], strips=True)[0]) == " the end"
    assert "".join(run(words("<begin>", " the"), [size], strips=True, hidden=[0])[0]) == "the"


@pytest.mark.parametrize("stops", [[], ["never to be seen", "ab" * 50]])
def test_dt_4_cost_of_a_token_does_not_depend_on_how_many_came_before(stops: list[str]) -> None:
    script = Script([b" ab"])
    pipeline = TextPipeline(script, stops=StopStrings(stops))
    cost: dict[int, int] = {}
    for at in range(1, 8001):
        if at in (100, 8000):
            cost[at] = effort(lambda: pipeline.feed([0]))
            assert len(pipeline._kept) < 200
        else:
            pipeline.feed([0])
    assert cost[8000] <= 2 * cost[100]


# ------------------------------------------------------------------------------------------------ stop strings


def test_st_1_a_stop_string_split_over_tokens() -> None:
    for sizes in ([1], [2], [5]):
        deltas, pipeline = run(words(" al", "pha", " be", "ta gam", "ma!"), sizes, stops=["beta gamma"])
        assert "".join(deltas) == " alpha "
        assert (pipeline.stop_at, pipeline.stopped_by) == (5, "beta gamma")


def test_st_1_only_what_may_still_match_is_held_back() -> None:
    deltas, _ = run(words(" al", "pha", " be", "ta x", "y"), stops=["beta gamma"])
    assert deltas == [" al", "pha", " ", "beta x", "y", ""]


def test_st_1_of_two_that_complete_together_the_earlier_start_wins() -> None:
    for pieces in (words("xaaab"), words("x", "a", "a", "a", "b"), words("xaa", "ab")):
        deltas, pipeline = run(pieces, stops=["aab", "ab"])
        assert "".join(deltas) == "xa"
        assert pipeline.stopped_by == "aab"


def test_st_1_the_first_to_complete_wins_within_a_token_too() -> None:
    for pieces in (words("abcdef"), words("abc", "def")):
        deltas, pipeline = run(pieces, stops=["abcdef", "cd"])
        assert "".join(deltas) == "ab"
        assert pipeline.stopped_by == "cd"


def test_st_1_tokens_after_the_stop_are_neither_shown_nor_counted() -> None:
    deltas, pipeline = run(words("a", "STOP", "b", "STOP"), [4], stops=["STOP"])
    assert "".join(deltas) == "a"
    assert (pipeline.stop_at, pipeline.fed) == (2, 2)


def test_st_1_the_stop_string_itself_on_request() -> None:
    assert "".join(run(words("a", "ST", "OP b"), stops=["STOP"], include_stop=True)[0]) == "aSTOP"


def test_st_1_what_was_held_back_comes_at_the_end() -> None:
    assert run(words("a S", "TO"), stops=["STOP"])[0] == ["a ", "", "STO"]


def test_st_1_a_stop_string_with_characters_that_straddle_tokens() -> None:
    deltas, pipeline = run([b"a\xf0\x9f", b"\x98\x80", b"b"], stops=["😀"])
    assert "".join(deltas) == "a"
    assert pipeline.stop_at == 2


def test_in_4_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(UserError) as caught:
        StopStrings(["a", ""])
    assert caught.value.field == "stop[1]"


def test_in_4_a_state_of_stop_strings_is_no_object() -> None:
    """A thousand letters make a thousand states, and no list or dictionary for each."""
    stops = StopStrings([f"{each:064}"[::-1] for each in range(16)])
    found: list[object] = [stops]
    containers = 0
    while found:
        parts = gc.get_referents(*found)
        found = [each for each in parts if isinstance(each, dict | list | tuple)]
        containers += len(found)
    assert containers < 10


# ------------------------------------------------------------------------------------------------ end tokens


def test_eo_1_end_tokens_are_not_shown() -> None:
    assert "".join(run(words("a", "</s>", "b", "<end>"), hidden=[1, 3])[0]) == "ab"


def test_eo_1_stop_strings_are_not_honoured_before_min_tokens() -> None:
    pieces = words("STOP", "b", "c", "STOP", "d")
    deltas, pipeline = run(pieces, stops=["STOP"], min_tokens=3)
    assert "".join(deltas) == "STOPbc"
    assert pipeline.stop_at == 4


def test_eo_1_a_stop_string_may_begin_before_min_tokens_and_is_then_not_sent() -> None:
    deltas, pipeline = run(words("x", "be", "ta", "y"), stops=["beta"], min_tokens=3)
    assert "".join(deltas) == "x"
    assert pipeline.stop_at == 3


# ------------------------------------------------------------------------------------------------ laws


def naive(
    pieces: Sequence[bytes], stops: Sequence[str], min_tokens: int, include: bool, strips: bool, hidden: Sequence[int]
) -> tuple[str, int | None]:
    """The rules, tried on the whole text after every token."""
    data = b""
    seen = 0
    for index, piece in enumerate(pieces):
        shown = b"" if index in hidden else piece
        before = whole(data)
        data += shown[1:] if strips and not data and not seen and shown.startswith(b" ") else shown
        seen += len(shown)
        text = whole(data)
        if index + 1 < min_tokens:
            continue
        found = [
            (end, end - len(stop))
            for stop in stops
            for end in range(max(len(before) + 1, len(stop)), len(text) + 1)
            if text[end - len(stop) : end] == stop
        ]
        if found:
            end, start = min(found)
            return text[: end if include else start], index + 1
    return whole(data), None


def whole(data: bytes) -> str:
    """One-shot decode without an incomplete character at the end."""
    for cut in range(4):
        tail = data[len(data) - cut :] if cut else b""
        if cut <= len(data) and incomplete(tail):
            return data[: len(data) - cut].decode(errors="replace")
    return data.decode(errors="replace")


def incomplete(tail: bytes) -> bool:
    """Whether some bytes after ``tail`` would make it a character, or a surrogate, which Python waits for too."""
    if len(tail) == 2 and tail[0] == 0xED and 0xA0 <= tail[1] < 0xC0:
        return True
    if not tail or tail[0] < 0xC2 or tail[0] > 0xF4:
        return False
    more = [b"\x80", b"\x90", b"\x9f", b"\xa0", b"\xbf"]
    rest = [tail + a for a in more]
    rest += [each + b"\x80" for each in rest] + [each + b"\x80\x80" for each in rest]
    return any(valid(each) for each in rest)


def valid(data: bytes) -> bool:
    try:
        return len(data.decode()) == 1
    except UnicodeDecodeError:
        return False


PIECES = st.lists(
    st.one_of(
        st.text("ab c", max_size=4).map(str.encode),
        st.sampled_from([b"", b" ", "é".encode(), b"\xf0\x9f", b"\x98\x80", b"\xe2\x82", b"\xac", b"\xff", b"a\xc3"]),
        st.binary(max_size=3),
    ),
    max_size=12,
)
STOPS = st.lists(st.one_of(st.text("abc ", min_size=1, max_size=4), st.sampled_from(["é", "😀", "€a"])), max_size=4)


@given(
    PIECES,
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    STOPS,
    st.integers(0, 5),
    st.booleans(),
    st.booleans(),
    st.lists(st.integers(0, 11), max_size=2),
)
@example([b"ab", b"ac"], [1], ["abac", "ba"], 0, False, False, [])
@example([b" ba"], [1], ["b"], 0, False, True, [])
@example([b"aab", b"c"], [1], ["ab", "abc"], 2, False, False, [])
def test_any_chunking_gives_what_the_rules_say_of_the_whole(
    pieces: list[bytes],
    sizes: list[int],
    stops: list[str],
    min_tokens: int,
    include: bool,
    strips: bool,
    hidden: list[int],
) -> None:
    deltas, pipeline = run(
        pieces, sizes, stops=stops, min_tokens=min_tokens, include_stop=include, strips=strips, hidden=hidden
    )
    assert ("".join(deltas), pipeline.stop_at) == naive(pieces, stops, min_tokens, include, strips, hidden)


@given(PIECES, STOPS)
@example([b"\xed", b"\xac"], [])
def test_nothing_is_held_back_that_cannot_match(pieces: list[bytes], stops: list[str]) -> None:
    pipeline = TextPipeline(Script(pieces), stops=StopStrings(stops))
    sent = ""
    for at in range(len(pieces)):
        sent += pipeline.feed([at])
        if pipeline.stop_at is not None:
            return
        text = whole(b"".join(pieces[: at + 1]))
        held = text[len(sent) :]
        assert text.startswith(sent)
        longest = max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)
        assert len(held) == longest
