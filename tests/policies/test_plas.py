"""``plas``: programs of many short calls are not held up by long ones, and everybody ends."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from stepwell.core import registry
from stepwell.core.limits import SchedulerLimits
from stepwell.core.protocols import PolicyEvent
from stepwell.core.types import RequestState
from stepwell.sim.workload.request import TraceRequest, Workload
from stepwell.tests.helpers.timeline import Timeline
from stepwell.tests.policies.playing import order, play

FOUR_SEATS = SchedulerLimits(running_limit=4, token_budget=256)
CALLS, GAP_NS = 6, 900
LOAD = Workload(
    "agents",
    [
        *(TraceRequest(40 * program, 32, 1500, program=f"long-{program}") for program in range(6)),
        *(
            TraceRequest(500 + 300 * program + GAP_NS * call, 16, 12, program=f"short-{program}")
            for program in range(20)
            for call in range(CALLS)
        ),
    ],
).requests
"""Six programs of one long call each take all four seats before twenty come that make six short calls each."""
QUICK: dict[str, object] = {"quantum": 512, "output_cost": 4, "aging_s": 1e-3}


def times_ns(run: Timeline, requests: Sequence[TraceRequest]) -> dict[str, int]:
    """Of each program, from the arrival of its first call to the end of its last."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for id, request in enumerate(requests, 1):
        first.setdefault(request.program, request.arrival_ns)
        last[request.program] = max(last.get(request.program, 0), run.stories[id].end_ns)
    return {program: last[program] - first[program] for program in first}


def mean(times: dict[str, int]) -> float:
    return sum(times.values()) / len(times)


def test_the_mean_time_of_a_program_is_below_that_under_fcfs() -> None:
    """On the device of round numbers (a step takes 10 ns and 1 ns a token), at four times what four seats can do."""
    plas, fcfs = play("plas", LOAD, QUICK, limits=FOUR_SEATS), play("fcfs", LOAD, limits=FOUR_SEATS)
    ours, theirs = times_ns(plas, LOAD), times_ns(fcfs, LOAD)
    assert mean(ours) < 0.5 * mean(theirs)
    short = [program for program in ours if program.startswith("short")]
    assert sum(ours[each] for each in short) < 0.2 * sum(theirs[each] for each in short)
    assert len(plas.stories) == len(LOAD), "everybody ends"
    assert all(story.reason == "stop" for story in plas.stories.values())


def test_a_new_program_comes_before_the_next_call_of_one_that_had_much() -> None:
    """By calls alone (``mlfq``) the two that wait are alike, and the earlier one is first."""
    requests = [
        TraceRequest(0, 16, 200, program="agent"),
        TraceRequest(3000, 16, 60, program="other"),
        TraceRequest(3100, 16, 4, program="agent"),
        TraceRequest(3200, 16, 4, program="new"),
        TraceRequest(3300, 16, 4),
    ]
    assert order(play("plas", requests, {**QUICK, "preempt": "never"})) == [1, 2, 4, 5, 3]
    assert order(play("mlfq", requests, {"quantum": 128})) == [1, 2, 3, 4, 5]


def test_the_oldest_is_promoted_at_its_age() -> None:
    """New programs come faster than the seat can serve them; the agent's second call waits no longer than its age."""
    new = [TraceRequest(2400 + 40 * k, 16, 4, program=f"new-{k}") for k in range(200)]
    agent = [TraceRequest(at_ns, 16, output, program="agent") for at_ns, output in ((0, 200), (2401, 4))]
    stream = [agent[0], new[0], agent[1], *new[1:]]
    patient = play("plas", stream, {**QUICK, "aging_s": 1.0}).stories[3]
    aged = play("plas", stream, {**QUICK, "aging_s": 2e-6}).stories[3]
    assert aged.admissions[0] < 2401 + 2000 + 200 < 10_000 < patient.admissions[0]


def ended(id: int, program: str) -> Any:
    seen = {"id": id, "program": program, "klass": "chat", "aging_ns": 0, "arrival_ns": 0}
    return SimpleNamespace(**seen, prompt_tokens=10, generated=1, state=RequestState.FINISHED)


@pytest.mark.parametrize("most", [1, 3])
def test_so_many_programs_are_remembered(most: int) -> None:
    policy: Any = registry.make_policy("plas", {"programs": most, "output_cost": 1})
    for id, program in enumerate(("a", "b", "a", "", "c", "d"), 1):
        for kind in ("arrived", "finished"):
            policy.observe(PolicyEvent(kind, ended(id, program), 0))
    assert policy.dump() == {"given": [("a", 22), ("c", 11), ("d", 11)][-most:], "joined": []}
    again: Any = registry.make_policy("plas", {"programs": most, "output_cost": 1})
    again.load(policy.dump())
    assert again.dump() == policy.dump()
