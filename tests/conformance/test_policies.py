"""Every registered policy, the built-ins among them, keeps its contract and its promises; who does not is caught."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import ClassVar

import msgspec
import pytest

from stepwell.core import registry
from stepwell.core.plan import Preemption, StepPlan
from stepwell.core.protocols import PolicyEvent, Promises, RequestView, SchedulerView
from stepwell.core.testing import ConformanceError, check_policy
from stepwell.core.testing_play import Arrival, Scenario
from stepwell.core.testing_policy import check_scenario
from stepwell.core.types import FOREVER
from stepwell.policies.line import Key
from stepwell.policies.toolkit import OrderedLine, by_arrival, pack

REGISTERED = sorted(entry.name for entry in entry_points(group="stepwell.policies"))


def test_the_built_in_policies_are_registered() -> None:
    assert {"fcfs", "swap", "chat-batch", "static"} <= set(REGISTERED)


@pytest.mark.parametrize("name", REGISTERED)
def test_conforms(name: str) -> None:
    check_policy(lambda: registry.make_policy(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", REGISTERED)
def test_conforms_at_length(name: str) -> None:
    check_policy(lambda: registry.make_policy(name), examples=1500)


@pytest.mark.parametrize(("aging_s", "preempt"), [(0.0, "swap"), (0.05, "swap"), (0.08, "recompute")])
def test_an_option_does_not_change_the_promises(aging_s: float, preempt: str) -> None:
    options = {"aging_s": aging_s, "preempt": preempt}
    check_policy(lambda: registry.make_policy("chat-batch", options), examples=80)


def test_a_repeat_ends_when_time_alone_changes_the_order() -> None:
    """The batch request ages past the chat request that waits behind the one that runs."""
    chat, batch = Arrival(0, 1, 12, 12), Arrival(0, 1, 2, 2, "batch")
    scenario = Scenario((chat, batch, Arrival(1, 1, 2, 2)), running_limit=1)
    check_scenario(scenario, lambda: registry.make_policy("chat-batch", {"aging_s": 0.05}))


# ------------------------------------------------------------------------------------------------ who is caught


class Honest:
    """First come, first served: what the broken ones below start from."""

    promises = Promises(work_conserving=True, bounded_wait=True)

    def __init__(self) -> None:
        self.line = OrderedLine(by_arrival)

    def observe(self, event: PolicyEvent) -> None:
        self.line.observe(event)

    def plan(self, view: SchedulerView) -> StepPlan:
        return pack(view, self.line)


class ReadsTheFuture(Honest):
    def plan(self, view: SchedulerView) -> StepPlan:
        sum(getattr(request, "output_tokens", 0) for request in view.waiting.values())
        return super().plan(view)


class ReadsPrivateParts(Honest):
    def plan(self, view: SchedulerView) -> StepPlan:
        getattr(view, "_allocator", None)
        return super().plan(view)


class OverBudget(Honest):
    def plan(self, view: SchedulerView) -> StepPlan:
        plan = super().plan(view)
        whole = [(id, view.waiting[id].pending) for id, _ in plan.admit]
        return msgspec.structs.replace(plan, admit=whole)


class ChangesRequests(Honest):
    def plan(self, view: SchedulerView) -> StepPlan:
        for request in view.waiting.values():
            request.rank = 3  # type: ignore[misc]
        return super().plan(view)


class ChangesWhileObserving(Honest):
    def observe(self, event: PolicyEvent) -> None:
        event.request.preemptions += 1  # type: ignore[misc]
        super().observe(event)


class RepeatsTooLong(Honest):
    """Takes in nobody but in every fourth step, and says that nothing will change."""

    promises = Promises()

    def plan(self, view: SchedulerView) -> StepPlan:
        if view.step % 4 and view.decoding and not view.loose and len(view.growing()) <= view.free_pages:
            return StepPlan(repeat=FOREVER)
        return super().plan(view)


class CountsAcrossInstances(Honest):
    promises = Promises()
    plans: ClassVar[int] = 0

    def plan(self, view: SchedulerView) -> StepPlan:
        CountsAcrossInstances.plans += 1
        one = min(1, view.running_limit - view.running)
        return pack(view, self.line, seats=one if self.plans // 7 % 2 else None)


class CountsItsPlans(Honest):
    promises = Promises()

    def __init__(self) -> None:
        super().__init__()
        self.plans = 0

    def plan(self, view: SchedulerView) -> StepPlan:
        self.plans += 1
        return pack(view, self.line, mode="swap" if self.plans % 2 else "recompute")


class LastComeFirst(Honest):
    def __init__(self) -> None:
        super().__init__()
        self.line = OrderedLine(lambda request, now_ns: (0, -request.id))


class SmallFirst(Honest):
    def __init__(self) -> None:
        super().__init__()
        self.line = OrderedLine(lambda request, now_ns: (request.prompt_tokens, request.id))


class OneAtATime(Honest):
    def plan(self, view: SchedulerView) -> StepPlan:
        return pack(view, self.line, seats=0 if view.running else 1)


class NoRank(Honest):
    promises = Promises(respects_rank=True)


class EvictsEquals(Honest):
    """Sends the latest away for the head of the line, whatever their classes."""

    promises = Promises(respects_rank=True)

    def __init__(self) -> None:
        super().__init__()
        self.line = OrderedLine(self.key)

    def key(self, request: RequestView, now_ns: int) -> Key:
        return (request.rank, request.id)

    def plan(self, view: SchedulerView) -> StepPlan:
        plan = pack(view, self.line)
        head = plan.blocked.request if plan.blocked else 0
        victim = next((each for each in view.decoding.values() if not each.protected), None)
        if victim is None or not head or plan.slices or plan.admit or plan.resume or plan.preempt or plan.hold:
            return plan
        return StepPlan(preempt=[Preemption(victim.id, "recompute", "because", head)])


class DropsWork(Honest):
    promises = Promises(keeps_work=True)


class ForgetsTheRefused(Honest):
    def __init__(self) -> None:
        super().__init__()
        self.forgotten: set[int] = set()

    def observe(self, event: PolicyEvent) -> None:
        if event.kind == "refused":
            self.forgotten.add(event.request.id)
        if event.request.id not in self.forgotten:
            super().observe(event)

    def plan(self, view: SchedulerView) -> StepPlan:
        plan = super().plan(view)
        admit = [part for part in plan.admit if part[0] not in self.forgotten]
        idle = not (admit or plan.slices or plan.preempt or plan.resume or plan.hold or view.decoding)
        return msgspec.structs.replace(plan, admit=admit, wake_ns=view.now_ns + 1 if idle else plan.wake_ns)


BROKEN: list[tuple[type[Honest], str]] = [
    (ReadsTheFuture, r"reads request\.output_tokens, which a policy must not know"),
    (ReadsPrivateParts, r"reads view\._allocator, which a policy must not know"),
    (OverBudget, r"broke the rule 'token budget' in the plan for step \d+: \d+ tokens planned"),
    (ChangesRequests, r"plan\(\) changed the scheduler's state in step \d+"),
    (ChangesWhileObserving, r"observe\('arrived'\) changed the scheduler's state"),
    (RepeatsTooLong, "is not honest about repeat"),
    (CountsAcrossInstances, "is not deterministic|is not honest about repeat"),
    (CountsItsPlans, "is not a function of the live requests|is not honest about repeat"),
    (LastComeFirst, "starves: a (chat|batch) request of .*promised: bounded_wait"),
    (SmallFirst, "starves: a (chat|batch) request of 20 prompt tokens"),
    (OneAtATime, r"takes in nobody although .* \(promised: work_conserving\)"),
    (NoRank, r"takes in request \d+ past request \d+ of better rank \(promised: respects_rank\)"),
    (EvictsEquals, r"sends request \d+ away for request \d+ of no better rank \(promised: respects_rank\)"),
    (DropsWork, r"drops the work of request \d+, \d+ pages of \d+ free \(promised: keeps_work\)"),
    (ForgetsTheRefused, "does not recover from refused items"),
]


@pytest.mark.parametrize(("broken", "message"), BROKEN, ids=lambda value: getattr(value, "__name__", ""))
def test_catches(broken: type[Honest], message: str) -> None:
    with pytest.raises(ConformanceError, match=message):
        check_policy(broken, examples=5 if message.startswith("starves") else 300, shrink=False)


def test_who_the_broken_ones_start_from_is_not_caught() -> None:
    check_policy(Honest, examples=25)
