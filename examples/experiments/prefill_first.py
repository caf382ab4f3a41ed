"""Whole prompts before everything else, in steps of their own: what vLLM did before it had chunked prefill.

While prompts are computed nobody decodes, so answers stall for as long as new requests keep coming (Agrawal et al.,
Sarathi-Serve, OSDI'24, section 3.1).  The token budget is to hold the longest prompt.
"""

from __future__ import annotations

import msgspec

from stepwell.core.plan import StepPlan
from stepwell.core.protocols import PolicyEvent, Promises, SchedulerView
from stepwell.policies.toolkit import OrderedLine, by_arrival, pack


class PrefillFirst:
    """First come, first served; decoding waits while there is a prompt that fits."""

    name = "prefill-first"
    promises = Promises(bounded_wait=True)

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """None."""

    def __init__(self, options: Options) -> None:
        self.line = OrderedLine(by_arrival)

    def observe(self, event: PolicyEvent) -> None:
        self.line.observe(event)

    def plan(self, view: SchedulerView) -> StepPlan:
        if view.loose or view.waiting:
            plan = pack(view, self.line, decode=False)
            if plan.admit or plan.slices or plan.resume:
                return plan
        return pack(view, self.line, seats=0)
