"""First come, first served, preempting by swap: a request that gives way keeps its work in the host tier.

Source: Kwon et al., SOSP'23, section 4.5 (swapping).  Where the host tier is full, the victim is recomputed instead.
"""

from __future__ import annotations

import msgspec

from stepwell.core.plan import StepPlan
from stepwell.core.protocols import PolicyEvent, Promises, SchedulerView
from stepwell.policies.toolkit import OrderedLine, by_arrival, pack


class Swap:
    """First come, first served; preempts the latest arrival by swap, by recompute when the host tier is full."""

    name = "swap"
    promises = Promises(work_conserving=True, bounded_wait=True, keeps_work=True)

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """None: the order of arrival says it all."""

    def __init__(self, options: Options) -> None:
        self.line = OrderedLine(by_arrival)

    def observe(self, event: PolicyEvent) -> None:
        self.line.observe(event)

    def plan(self, view: SchedulerView) -> StepPlan:
        return pack(view, self.line, mode="swap")
