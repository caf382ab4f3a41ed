"""``mlfq``: short answers are not held up by long ones whose length nobody knew, and nobody waits for ever."""

from __future__ import annotations

from stepwell.core.limits import SchedulerLimits
from stepwell.sim.workload.request import TraceRequest
from stepwell.tests.helpers.timeline import Timeline
from stepwell.tests.policies.playing import order, play

TWO_SEATS = SchedulerLimits(running_limit=2, token_budget=256)
MIXED = [
    *(TraceRequest(0, 16, 600) for _ in range(2)),
    *(TraceRequest(200 + 300 * k, 16, 4) for k in range(20)),
]
"""Two long answers hold both seats while short questions come."""


def longest_wait_ns(run: Timeline) -> int:
    return max(it.first_ns - it.arrival_ns for it in run.stories.values())


def test_the_longest_wait_is_bounded_by_the_quantum_and_not_by_the_longest_answer() -> None:
    """One quantum of 32 steps of 12 ns, the others' short service and the copies; under fcfs, 600 steps."""
    fcfs = longest_wait_ns(play("fcfs", MIXED, limits=TWO_SEATS))
    mlfq = longest_wait_ns(play("mlfq", MIXED, limits=TWO_SEATS))
    assert fcfs > 600 * 11 - 500
    assert mlfq < 32 * 12 + 300


def test_a_long_answer_keeps_its_work_when_it_gives_way() -> None:
    run = play("mlfq", MIXED, {"preempt": "swap"}, limits=TWO_SEATS)
    moved = [it for story in run.stories.values() for _, it in story.preemptions]
    assert moved
    assert all(it.mode == "swap" and it.request <= 2 for it in moved)
    assert run.stories[1].positions == list(range(16, 616))


def test_a_long_prompt_skips_the_levels_that_its_first_step_would_use_up() -> None:
    """1600 prompt tokens are worth 100 output tokens: level 3 of 32, 64, 128; a short one behind it comes first."""
    limits = SchedulerLimits(running_limit=1, token_budget=4096)
    requests = [TraceRequest(0, 16, 10), TraceRequest(1, 1600, 4), TraceRequest(2, 16, 4)]
    assert order(play("mlfq", requests, limits=limits)) == [1, 3, 2]
    assert order(play("mlfq", requests, {"levels": 1}, limits=limits)) == [1, 2, 3]


def test_the_oldest_is_promoted_at_its_age() -> None:
    """A long prompt under a stream of short ones that keeps the seat busy."""
    limits = SchedulerLimits(running_limit=1, token_budget=4096)
    stream = [TraceRequest(0, 16, 8), TraceRequest(1, 1600, 4), *(TraceRequest(2 + 90 * k, 16, 8) for k in range(80))]
    assert order(play("mlfq", stream, limits=limits))[-1] == 2
    aged = play("mlfq", stream, {"aging_s": 2e-6}, limits=limits).stories[2]
    assert 2_000 < aged.admissions[0] < 2_300
