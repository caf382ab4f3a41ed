"""Policies that are FCFS for a while and then break a rule; named in configurations as ``module:attribute``."""

from __future__ import annotations

from typing import Literal

import msgspec

from stepwell.core.plan import Preemption, StepPlan
from stepwell.core.protocols import PolicyEvent, Promises, SchedulerView
from stepwell.policies.toolkit import OrderedLine, by_arrival, pack


class Breaks:
    """First come, first served up to step ``at``; then the fault that ``how`` names."""

    name = "breaks"
    promises = Promises()

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """``at``: the step whose plan is broken."""

        at: int = 5
        how: Literal["unknown", "raises", "exits", "observe", "empty", "past"] = "unknown"

    def __init__(self, options: Options) -> None:
        self.options = options
        self.line = OrderedLine(by_arrival)
        self.step = 0

    def observe(self, event: PolicyEvent) -> None:
        if self.options.how == "observe" and self.step >= self.options.at:
            raise KeyError("nobody home")
        self.line.observe(event)

    def plan(self, view: SchedulerView) -> StepPlan:
        self.step = view.step
        if view.step < self.options.at or self.options.how == "observe":
            return pack(view, self.line)
        if self.options.how == "raises":
            raise ZeroDivisionError("a bug in the policy")
        if self.options.how == "exits":
            raise SystemExit("a policy of the kind that ends the process")
        if self.options.how == "empty":
            return StepPlan(decode=False)
        if self.options.how == "past":
            return StepPlan(wake_ns=max(view.now_ns, 1))
        return StepPlan(preempt=[Preemption(99_999, "recompute", "no such request")])


class Waits:
    """Never runs anybody, and wants to be woken at another time whenever it is asked."""

    name = "waits"
    promises = Promises()

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """None."""

    def __init__(self, options: Options) -> None:
        self.asked = 0

    def observe(self, event: PolicyEvent) -> None:
        """Whoever it is, they wait."""

    def plan(self, view: SchedulerView) -> StepPlan:
        self.asked += 1
        return StepPlan(decode=False, wake_ns=view.now_ns + 10**9 + self.asked)
