"""The tally of a crowd finds exactly what is missing and what came twice, however it was cut into pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepwell.cli.streams_tally import Heard, Tally
from stepwell.core.words import WordTokenizer
from stepwell.sim.numbered import NUMBERED, number_of, numbered_tokens


def text_of(numbers: list[int]) -> str:
    return "".join(NUMBERED[2 * (each % 4096) : 2 * (each % 4096) + 2] for each in numbers)


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(-20, 20)), min_size=1, max_size=30), st.integers(0, 9000))
def test_lost_and_doubled(pieces: list[tuple[int, int]], start: int) -> None:
    """Between pieces the answer jumps: forward, and tokens were lost, or back, and they came twice."""
    tally, at = Tally(), 0
    lost = doubled = 0
    heard = Heard(tally, 0, 0)
    heard.heard(text_of(list(range(start)))) if start else None
    at = start
    for length, jump in pieces:
        jump = max(jump, -at)
        lost, doubled = lost + max(jump, 0), doubled + max(-jump, 0)
        at += jump
        heard.heard(text_of(list(range(at, at + length))))
        at += length
    assert (tally.lost, tally.doubled) == (lost, doubled)
    assert not tally.problems


def test_an_answer_that_ends_early_lost_the_rest() -> None:
    tally = Tally()
    heard = Heard(tally, 10, 0)
    heard.heard(text_of([0, 1, 2]))
    heard.over("length")
    assert (tally.lost, tally.answered) == (7, 1)
    assert tally.wrong == ["7 lost tokens"]


def test_a_refusal_has_a_reason_and_a_time() -> None:
    tally = Tally()
    for code, retry in (("queue_full", "3"), ("queue_full", ""), ("", "1")):
        Heard(tally, 5, 0).refused(code, retry)
    assert tally.refused == {"queue_full": 2, "no reason given": 1}
    assert tally.wrong == ["1 × a refusal without a reason", "1 refusals without Retry-After"]


def test_who_is_overtaken() -> None:
    tally = Tally()
    tally.firsts = [(1, 10), (2, 30), (3, 20), (4, 40)]
    assert tally.overtaken(5) == 1
    assert tally.overtaken(50) == 0


def test_the_text_of_numbers_is_its_tokens() -> None:
    tokenizer = WordTokenizer()
    tokens = numbered_tokens(tokenizer)
    assert len(set(tokens)) == 4096
    assert tokenizer.decode(tokens).decode() == NUMBERED
    assert [number_of(NUMBERED[2 * place : 2 * place + 2]) for place in (0, 63, 64, 4095)] == [0, 63, 64, 4095]
