"""First come, first served, but who gives way when pages run out is whoever costs least to bring back.

Source: least computed first, and reclaimable pages by work and progress, S = B/T (1 - O/M), as victims of vLLM's
preemption in place of the latest arrival; ``policies.victims`` has the rules, for other policies too.  The order of
admission stays that of arrival, so whoever gives way is the next to come back.
"""

from __future__ import annotations

import msgspec

from stepwell.core.plan import StepPlan
from stepwell.core.protocols import PolicyEvent, Promises, SchedulerView
from stepwell.policies.toolkit import OrderedLine, by_arrival, pack
from stepwell.policies.victims import RULES, PreemptChoice, VictimOption


class CostAware:
    """First come, first served; whoever costs least gives way, the way that costs least."""

    name = "cost-aware"
    promises = Promises(work_conserving=True, bounded_wait=True)

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """Who gives way, and how."""

        victims: VictimOption = "least-computed"
        """The latest arrival, the one with the least computed, or pages set free by cost and progress."""
        preempt: PreemptChoice = "auto"
        """Kept in the host tier, computed again, or each as the measured speeds say."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.line = OrderedLine(by_arrival)

    def observe(self, event: PolicyEvent) -> None:
        self.line.observe(event)

    def plan(self, view: SchedulerView) -> StepPlan:
        options = self.options
        return pack(view, self.line, mode=options.preempt, victims=RULES[options.victims])
