"""First come, first served, with chunked prefill; the latest arrival is recomputed when pages run out.

Source: the order and preemption of vLLM V1's default scheduler (Kwon et al., SOSP'23, section 4.5, recomputation),
with Sarathi-Serve's chunked prefill.
"""

from __future__ import annotations

import msgspec

from stepwell.core.plan import StepPlan
from stepwell.core.protocols import PolicyEvent, Promises, SchedulerView
from stepwell.policies.toolkit import OrderedLine, by_arrival, pack


class Fcfs:
    """First come, first served; preempts the latest arrival by recompute."""

    name = "fcfs"
    promises = Promises(work_conserving=True, bounded_wait=True)

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """None: the order of arrival says it all."""

    def __init__(self, options: Options) -> None:
        self.line = OrderedLine(by_arrival)

    def observe(self, event: PolicyEvent) -> None:
        self.line.observe(event)

    def plan(self, view: SchedulerView) -> StepPlan:
        return pack(view, self.line)
