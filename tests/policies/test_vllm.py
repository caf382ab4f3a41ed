"""``vllm``: what vLLM V1's scheduler decides, worked by hand step by step from its rules (see ``policies.vllm``).

"A6" is a step in which A computes 6 tokens, "+A" says that A is admitted in it, "-A" that A is preempted.  Pages hold 4
tokens.  ``benchmarks/parity_vllm.py`` compares with the real one.
"""

from __future__ import annotations

from typing import Any

import pytest

from stepwell.benchmarks import parity_vllm
from stepwell.benchmarks.parity.episodes import BY_NAME, Asked, Episode, Machine
from stepwell.benchmarks.parity.ours import Run, Step


def told(step: Step) -> str:
    """In the words of this file."""
    tokens, admitted, preempted, _ = step
    name = " ABCDEFGH"
    parts = [f"-{name[id]}" for id in preempted] + [f"+{name[id]}" for id in admitted]
    return " ".join(parts + [f"{name[id]}{count}" for id, count in tokens])


def play(*requests: Asked, **machine: Any) -> list[str]:
    return [told(step) for step in Run(Episode(Machine(page_size=4, **machine), list(requests))).play()]


def asked(step: int, prompt: int, output: int, priority: int = 0, cancel: int = 0) -> Asked:
    """What a prompt says does not matter here."""
    return Asked(step, [0] * prompt, output, output, priority, cancel)


def test_running_requests_go_first_and_the_rest_of_the_budget_admits() -> None:
    steps = play(asked(0, 6, 3), asked(0, 10, 2), asked(0, 3, 4), token_budget=8, running_limit=4, pages=64)
    assert steps == [
        "+A +B A6 B2",  # B gets what is left of 8
        "A1 B7",  # and again; C waits
        "+C A1 B1 C3",
        "B1 C1",  # B's second token is its last; A ended
        "C1",
        "C1",
    ]


def test_admission_asks_for_the_whole_present_length_and_takes_the_slice_alone() -> None:
    """B's 16 tokens fit in the 4 free pages when it is admitted; it takes 1 of them, A grows into the others."""
    steps = play(asked(0, 8, 9), asked(0, 16, 1), token_budget=12, running_limit=4, pages=6)
    # 0: A takes 2 of 6 pages, B 1
    # 1: A takes its third; B's next 11 tokens need 3, and 2 are free: B itself goes, being the last
    # 2: B needs 4, and 3 are free (2 from A's 13th token on); it waits until A has ended, in step 8
    assert steps == ["+A +B A8 B4", "-B A1", *["A1"] * 7, "+B B12", "B4"]


def test_a_prompt_that_does_not_fit_now_waits_and_nobody_passes_it() -> None:
    steps = play(asked(0, 8, 3), asked(0, 20, 1), asked(0, 2, 1), token_budget=32, running_limit=4, pages=6)
    assert steps == ["+A A8", "A1", "A1", "+B +C B20 C2"]


def test_who_was_admitted_last_is_recomputed_at_the_front_of_the_line() -> None:
    steps = play(asked(0, 4, 9), asked(0, 4, 9), asked(1, 9, 1), token_budget=16, running_limit=3, pages=4)
    # 0: a page each; 1 to 4: both fill a second, none is free and C waits
    # 5: A's 9th token needs a third page: B goes and leaves two, A takes one
    # B would need 3 for its 9 tokens, and C behind it as many: they wait until A has ended, in step 8
    # 9: B takes 3, C would need 3; it comes when B has ended, in step 12
    assert steps == [
        "+A +B A4 B4",
        *["A1 B1"] * 4,
        "-B A1",
        *["A1"] * 3,
        "+B B9",
        *["B1"] * 3,
        "+C C9",
    ]


def test_nobody_is_admitted_in_a_step_that_preempts() -> None:
    """C would fit in what B leaves, even so it waits for the next step: there B's 6 tokens come first."""
    steps = play(asked(0, 4, 6), asked(0, 5, 6), asked(1, 1, 1), token_budget=16, running_limit=3, pages=3)
    # 0: A 1 page, B 2; 1: A needs a second: B goes, and leaves 2; B needs 2 for its 6 tokens, 1 is free
    assert steps == ["+A +B A4 B5", "-B A1", *["A1"] * 4, "+B +C B6 C1", *["B1"] * 4]


def test_priority_admits_the_better_one_and_sends_the_worst_away_wherever_it_runs() -> None:
    machine = {"order": "priority", "token_budget": 16, "running_limit": 3, "pages": 5}
    steps = play(asked(0, 4, 6, priority=1), asked(0, 4, 6), asked(1, 4, 6), **machine)
    # 0: B is better than A; 1: both take a second page, the fifth is C's
    # 2: C needs a second: A, the worst, goes, although it runs before C and has had its token in this step
    # A needs 2 pages for its 6 tokens, and 1 is free until B has ended, in step 5
    assert steps == [
        "+B +A A4 B4",
        "+C A1 B1 C4",
        "-A B1 C1",
        *["B1 C1"] * 3,
        "+A A6 C1",
        "A1",
        "A1",
        "A1",
    ]


def test_who_sends_itself_away_ends_the_step_for_those_behind_it() -> None:
    machine = {"order": "priority", "token_budget": 16, "running_limit": 3, "pages": 7}
    steps = play(asked(0, 4, 8), asked(1, 4, 8, priority=1), asked(2, 2, 6), **machine)
    # 5: A takes its third page for its 9th token, C its second for its 5th; with B's two that is all
    # 6: A goes on; B lacks a page for its 9th token, and is the worst itself: it goes, and C sits this step out
    # 7: B needs 3 pages for 9 tokens, 2 are free; 8: A has ended
    assert steps == [
        "+A A4",
        "+B A1 B4",
        "+C A1 B1 C2",
        *["A1 B1 C1"] * 3,
        "-B A1",
        "A1 C1",
        "+B B9 C1",
        "B1",
        "B1",
    ]


def test_a_long_prompt_is_capped_while_others_live() -> None:
    machine = {"long_prefill_token_threshold": 5, "token_budget": 16, "running_limit": 4, "pages": 32}
    assert play(asked(0, 12, 2), asked(1, 3, 1), asked(1, 30, 1), **machine)[:4] == [
        "+A A12",  # alone, it has the whole budget
        "+B +C A1 B3 C5",
        "C16",  # alone again
        "C9",
    ]


def test_a_cancelled_request_leaves_its_pages_to_the_next() -> None:
    steps = play(asked(0, 8, 9, cancel=2), asked(0, 12, 1), token_budget=32, running_limit=4, pages=4)
    assert steps == ["+A A8", "A1", "+B B12"]


@pytest.mark.slow
def test_decides_as_the_real_one_does() -> None:
    """The part of ``benchmarks/parity_vllm.py`` that fits in a test; that installs vLLM, this does not."""
    if not parity_vllm.PYTHON.exists():
        pytest.skip("vLLM is not installed: python -m stepwell.benchmarks.parity_vllm")
    names = ("no memory", "priority", "shared, at once, same memory")
    scores = parity_vllm.compare([BY_NAME[name] for name in names], 2, 7)
    assert {name: score.first for name, score in scores.items()} == dict.fromkeys(names, "")
    assert all(score.steps_same == score.steps > 100 for score in scores.values())
