"""``priority``: lower numbers first, as clients of vLLM write them; age overrules them in the end."""

from __future__ import annotations

from stepwell.core.types import MAX_PRIORITY
from stepwell.sim.workload.request import TraceRequest
from stepwell.tests.policies.playing import order, play

ASKED = [
    TraceRequest(0, 16, 40),
    *(TraceRequest(1 + k, 16, 4, priority=wish) for k, wish in enumerate((3, -1, 0, -1, MAX_PRIORITY, -MAX_PRIORITY))),
]
"""One runs; the others wait with the priorities of requests 2 to 7."""


def test_the_lowest_is_first_and_equals_go_by_arrival() -> None:
    assert order(play("priority", ASKED, {"preempt": "never"})) == [1, 7, 3, 5, 4, 2, 6]


def test_who_runs_gives_way_to_a_better_priority_and_keeps_its_work() -> None:
    run = play("priority", ASKED)
    assert order(run) == [1, 7, 3, 5, 4, 2, 6]
    ((_, moved),) = run.stories[1].preemptions
    assert (moved.mode, moved.beneficiary) == ("swap", 7)
    assert run.stories[1].positions == list(range(16, 56))
    assert run.stories[4].admissions[0] >= run.stories[1].end_ns, "an equal one waits"


def test_nobody_waits_for_ever_for_better_priorities() -> None:
    stream = [TraceRequest(0, 16, 4), TraceRequest(1, 16, 4, priority=9)]
    stream += [TraceRequest(2 + 50 * k, 16, 4) for k in range(100)]
    waits = [play("priority", stream, {"aging_s": age}).stories[2].admissions[0] for age in (1e-6, 1.0)]
    assert waits[0] < 1_200 < 5_000 < waits[1]
