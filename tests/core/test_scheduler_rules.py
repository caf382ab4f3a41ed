"""Rules of the scheduler that a policy or a shell may run into, one small case each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from stepwell.core.errors import InvariantError
from stepwell.core.events import Event, RunDone, StepDone, Stop, Submitted, Timer
from stepwell.core.instructions import Finished, Instruction, Launch, PolicyFault, Preempted, Wake
from stepwell.core.limits import MAX_BARREN_PLANS, MAX_IDLE_WAKES, SchedulerLimits
from stepwell.core.plan import Obstacle, Preemption, StepPlan
from stepwell.core.protocols import PolicyEvent, Promises, SchedulerView
from stepwell.core.scheduler import Scheduler
from stepwell.core.types import FOREVER
from stepwell.memory.paged import Paged

Planner = Callable[[SchedulerView], Any]


class ByHand:
    """Plans what it is told to; takes offence at an event if asked to."""

    promises = Promises()

    def __init__(self, plan: Planner, offended_by: str = "") -> None:
        self._plan = plan
        self._offended_by = offended_by

    def observe(self, event: PolicyEvent) -> None:
        if event.kind == self._offended_by:
            raise KeyError(event.kind)

    def plan(self, view: SchedulerView) -> StepPlan:
        plan: StepPlan = self._plan(view)
        return plan


def scheduler_of(
    plan: Planner, *, pages: int = 64, offended_by: str = "", honour: bool = True, **limits: Any
) -> Scheduler:
    policy = ByHand(plan, offended_by)
    return Scheduler(
        SchedulerLimits(**limits),
        Paged(Paged.Options(), pages=pages, page_size=2, host_pages=64),
        lambda name, options: policy,
        honour_repeats=honour,
    )


def simple(view: SchedulerView) -> StepPlan:
    """Admit everybody whole, then decode and repeat, whatever the pages."""
    if view.waiting:
        return StepPlan(admit=[(id, request.pending) for id, request in view.waiting.items()])
    slices = [(id, request.pending) for id, request in view.loose.items()]
    return StepPlan(slices=slices) if slices else StepPlan(repeat=FOREVER)


def drive(scheduler: Scheduler, first: Sequence[Event], steps: int) -> list[Instruction]:
    """Hand in ``first``, then finish step after step; everything that was said."""
    said = scheduler.handle(0, first)
    for now_ns in range(1, steps):
        flight = scheduler.state.inflight
        if flight:
            said += scheduler.handle(now_ns, [StepDone(flight[0].id)])
    return said


def test_a_shortage_of_pages_ends_the_repeat() -> None:
    arrivals = [Submitted(1, 3, 30), Submitted(2, 3, 30)]
    told = [drive(scheduler_of(simple, pages=9, honour=honour), arrivals, 12) for honour in (True, False)]
    assert told[0] == told[1]


def test_nothing_is_launched_after_a_fault_in_a_repeat() -> None:
    scheduler = scheduler_of(simple, pages=6, offended_by="refused")
    said = drive(scheduler, [Submitted(1, 3, 30), Submitted(2, 3, 30)], 12)
    faults = [index for index, it in enumerate(said) if isinstance(it, PolicyFault)]
    assert len(faults) == 1
    assert "KeyError: 'refused' (test_scheduler_rules.py, line" in str(said[faults[0]])
    assert not [it for it in said[faults[0] :] if isinstance(it, Launch)]


def test_rejecting_is_no_barren_plan_and_keeps_its_reason() -> None:
    def reject(view: SchedulerView) -> StepPlan:
        first = next(iter(view.waiting), None)
        return StepPlan(reject=[(first, "over quota")] if first else ())

    count = 3 * MAX_BARREN_PLANS
    said = scheduler_of(reject).handle(0, [Submitted(id, 3, 3) for id in range(1, count + 1)])
    assert said == [Finished(id, "rejected", 0, 0, "over quota") for id in range(1, count + 1)]


def test_waking_for_ever_without_work_is_a_fault() -> None:
    scheduler = scheduler_of(lambda view: StepPlan(wake_ns=view.now_ns + 1))
    said = scheduler.handle(0, [Submitted(1, 3, 3)])
    assert said == [Wake(1)]
    for now_ns in range(1, MAX_IDLE_WAKES + 1):
        said = scheduler.handle(now_ns, [Timer()])
    assert isinstance(said[-1], PolicyFault)
    assert said[-1].rule == "progress"


def test_one_request_of_a_better_class_excuses_one_swap() -> None:
    """Chat 2 waits while batch 1 is swapped out and in for it: the first time is free, the others count."""

    def tease(view: SchedulerView) -> StepPlan:
        if 1 in view.waiting:
            return StepPlan(admit=[(1, 3)])
        if 1 in view.swapped:
            return StepPlan(resume=[1]) if view.swapped[1].ready else StepPlan()
        running = view.decoding.get(1) or view.loose.get(1)
        if running is not None and 2 in view.waiting and not running.protected and running.ready:
            return StepPlan(preempt=[Preemption(1, "swap", "tease", 2)])
        return StepPlan(slices=[(id, request.pending) for id, request in view.loose.items()])

    scheduler = scheduler_of(tease, max_preemptions=2)
    said = drive(scheduler, [Submitted(1, 3, 40, "batch"), Submitted(2, 3, 3)], 30)
    assert len([it for it in said if isinstance(it, Preempted)]) == 3
    assert scheduler.state.requests[1].protected


@pytest.mark.parametrize(
    "event", [StepDone(1, [2]), Stop(1, 5), Stop(1, -1), RunDone(1, []), RunDone(1, [7]), RunDone(1, [2, 3, 4])]
)
def test_impossible_events_are_refused(event: Event) -> None:
    scheduler = scheduler_of(lambda view: StepPlan(admit=[(1, 3)]) if 1 in view.waiting else simple(view))
    scheduler.handle(0, [Submitted(1, 3, 9), Submitted(2, 3, 9)])
    with pytest.raises(InvariantError):
        scheduler.handle(2, [event])


def test_a_run_with_nothing_in_flight_is_refused() -> None:
    with pytest.raises(InvariantError, match="a run of 1 steps"):
        scheduler_of(simple).handle(2, [RunDone(1, [2])])


@pytest.mark.parametrize(
    "plan",
    [
        None,
        StepPlan(wake_ns=10.5),  # type: ignore[arg-type]
        StepPlan(admit=[(1, 3.0)]),  # type: ignore[list-item]
        StepPlan(blocked=Obstacle(1, "quota")),  # type: ignore[arg-type]
        StepPlan(blocked=Obstacle(7, "pages"), wake_ns=9),
        StepPlan(reject=[(1, None)]),  # type: ignore[list-item]
        StepPlan(admit=[(1, 3)], reserve="some"),  # type: ignore[arg-type]
    ],
)
def test_a_plan_of_the_wrong_types_is_refused_whole(plan: Any) -> None:
    scheduler = scheduler_of(lambda view: plan)
    said = scheduler.handle(0, [Submitted(1, 3, 3)])
    assert [type(it) for it in said] == [PolicyFault]
    assert 1 in scheduler.state.waiting


def test_deadlines_of_requests_that_left_do_not_pile_up() -> None:
    scheduler = scheduler_of(simple, max_waiting=0)
    for id in range(1, 2_000):
        scheduler.handle(id, [Submitted(id, 3, 1, "chat", "default", 1 << 40)])
        scheduler.handle(id, [StepDone(scheduler.state.inflight[0].id)])
    assert not scheduler.state.requests
    assert len(scheduler.expiries) < 200


def test_no_more_run_than_the_budget_has_tokens_for() -> None:
    scheduler = scheduler_of(simple, token_budget=2, running_limit=4)
    assert scheduler.state.limits.running_limit == 2


def by_slices(view: SchedulerView) -> StepPlan:
    """Admit everybody with two tokens, and go on with two at a time."""
    slices = [(id, min(2, request.pending)) for id, request in view.loose.items()]
    return StepPlan(admit=[(id, 2) for id in view.waiting], reserve="slice", slices=slices)


def test_pages_reserved_by_slice_are_taken_as_the_slices_come() -> None:
    scheduler = scheduler_of(by_slices, pages=4)
    allocator = scheduler.state.allocator
    for step, pages in enumerate((1, 2, 3), 1):
        scheduler.handle(step, [Submitted(1, 6, 1)] if step == 1 else [StepDone(step - 1)])
        assert len(allocator.table(1)) == pages


def test_pages_are_reserved_by_slice_only_where_the_present_length_would_fit() -> None:
    scheduler = scheduler_of(by_slices, pages=4)
    scheduler.handle(0, [Submitted(1, 3, 1), Submitted(2, 7, 1)])
    assert list(scheduler.state.waiting) == [2]  # 7 tokens are 4 pages, and 3 are free
    assert scheduler.state.allocator.free_pages == 3


def test_a_protected_request_gets_its_greatest_length_whatever_the_plan_reserves() -> None:
    def plan(view: SchedulerView) -> StepPlan:
        ready = [Preemption(id, "recompute", "by hand") for id, request in view.loose.items() if not request.protected]
        return StepPlan(preempt=ready) if ready else by_slices(view)

    scheduler = scheduler_of(plan, pages=8, max_preemptions=1)
    scheduler.handle(0, [Submitted(1, 6, 5)])
    assert len(scheduler.state.allocator.table(1)) == 1
    scheduler.handle(1, [StepDone(1)])
    assert scheduler.state.requests[1].protected
    assert len(scheduler.state.allocator.table(1)) == 5  # of 6 + 5 - 1 positions
