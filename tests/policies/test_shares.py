"""What a class has of its own under any policy that packs: its share of a step's budget, and an age to age at."""

from __future__ import annotations

import pytest

from stepwell.core.events import Submitted
from stepwell.core.invariants import check_state
from stepwell.core.limits import ClassLimits, SchedulerLimits
from stepwell.core.snapshot import capture, restore
from stepwell.sim.workload.request import TraceRequest
from stepwell.tests.helpers.runs import build
from stepwell.tests.helpers.timeline import Timeline
from stepwell.tests.policies.playing import order, play

BUDGET, SHARE = 100, 25


def limits(share: float = 1.0, aging_ns: int = 0, running: int = 8) -> SchedulerLimits:
    batch = ClassLimits("batch", 1, budget_share=share, aging_ns=aging_ns)
    return SchedulerLimits(running_limit=running, token_budget=BUDGET, classes=(ClassLimits("chat"), batch))


LONG = [TraceRequest(0, 800, 2, "batch"), TraceRequest(0, 800, 2, "batch")]
MIXED = [*LONG, *(TraceRequest(5 + 400 * k, 40, 5) for k in range(6))]


def taken(run: Timeline, requests: list[TraceRequest], klass: str) -> dict[int, int]:
    """Prompt tokens of the class by the time of the launch."""
    found: dict[int, int] = {}
    for id, story in run.stories.items():
        for at_ns, (_, _, tokens, _) in story.slices if requests[id - 1].klass == klass else ():
            found[at_ns] = found.get(at_ns, 0) + tokens
    return found


def beside(run: Timeline, requests: list[TraceRequest], at_ns: int) -> bool:
    """Whether a chat request was there."""
    return any(
        story.arrival_ns <= at_ns < story.end_ns
        for id, story in run.stories.items()
        if requests[id - 1].klass == "chat"
    )


@pytest.mark.parametrize("policy", ["fcfs", "chat-batch", "vtc", "sjf", "mlfq", "plas", "priority", "edf"])
def test_a_class_keeps_to_its_share_while_another_has_work_and_takes_all_when_alone(policy: str) -> None:
    run = play(policy, MIXED, limits=limits(SHARE / BUDGET))
    for at_ns, tokens in taken(run, MIXED, "batch").items():
        assert tokens <= (SHARE if beside(run, MIXED, at_ns) else BUDGET)
    alone = play(policy, LONG, limits=limits(SHARE / BUDGET))
    assert max(taken(alone, LONG, "batch").values()) == BUDGET
    assert {story.reason for story in (*run.stories.values(), *alone.stories.values())} == {"stop"}


def test_whoever_has_had_its_share_is_passed_by_others() -> None:
    """First come, first served: two long batch prompts are before everybody else, and need sixteen whole steps."""
    chat = range(3, 9)
    shared, whole = (play("fcfs", MIXED, limits=limits(share)).stories for share in (SHARE / BUDGET, 1.0))
    assert max(shared[id].first_ns - shared[id].arrival_ns for id in chat) < 300
    assert max(whole[id].first_ns - whole[id].arrival_ns for id in chat) > 1_000
    assert shared[3].admissions[0] < shared[2].admissions[0]


def test_an_old_one_of_a_class_ranks_with_the_best_at_the_age_of_its_class() -> None:
    """One seat under a stream of chat; the option's age is out of reach."""
    stream = [TraceRequest(0, 16, 4), TraceRequest(1, 16, 4, "batch")]
    stream += [TraceRequest(2 + 50 * k, 16, 4) for k in range(100)]
    waits = []
    for aging_ns in (1_000, 3_000, 0):
        run = play("chat-batch", stream, {"aging_s": 1.0}, limits=limits(aging_ns=aging_ns, running=1))
        waits.append(run.stories[2].admissions[0])
    assert 1_000 < waits[0] < 1_100
    assert 3_000 < waits[1] < 3_100
    assert waits[2] > 5_000


def test_each_class_with_an_age_of_its_own_has_its_own_elder() -> None:
    classes = tuple(
        ClassLimits(name, rank, aging_ns=age) for rank, (name, age) in enumerate((("chat", 0), ("a", 900), ("b", 400)))
    )
    one_seat = SchedulerLimits(running_limit=1, token_budget=BUDGET, classes=classes)
    stream = [
        TraceRequest(0, 16, 4),
        TraceRequest(1, 16, 4, "a"),
        TraceRequest(2, 16, 4, "b"),
        TraceRequest(3, 16, 4, "b"),
    ]
    stream += [TraceRequest(4 + 50 * k, 16, 4) for k in range(60)]
    found = order(play("chat-batch", stream, {"aging_s": 1.0}, limits=one_seat))
    assert [id for id in found if 2 <= id <= 4] == [3, 4, 2]


def test_who_is_there_is_known_after_a_snapshot() -> None:
    of = limits(0.3)
    scheduler, again = build("fcfs", limits=of), build("fcfs", limits=of)
    scheduler.handle(0, [Submitted(1, 400, 4, "batch"), Submitted(2, 4, 4)])
    restore(again, capture(scheduler))
    for each in (scheduler, again):
        check_state(each.state)
        requests = each.state.requests
        assert [each.state.view.prefill_limit(requests[id]) for id in (1, 2)] == [30, BUDGET]
