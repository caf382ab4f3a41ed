"""The cheapest victim: when pages run out, whoever loses the least work for the pages that it gives back goes first.

For: long prompts beside short ones in too small a memory.  The latest arrival, which most engines send away, may be a
long prompt that was just computed; its work is done again for pages that a smaller request would have given as well.
Pages that others share do not come free, so they do not count; every preemption so far makes a request dearer.
"""

from __future__ import annotations

import msgspec

from stepwell.core.plan import StepPlan
from stepwell.core.protocols import PolicyEvent, Promises, RequestView, SchedulerView
from stepwell.policies.toolkit import OrderedLine, by_arrival, pack


class CheapestVictim:
    """First come, first served; the victim is who has the least to recompute, by page given back."""

    api_version = 1
    promises = Promises(work_conserving=True, bounded_wait=True)

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """None."""

    def __init__(self, options: Options) -> None:
        self.line = OrderedLine(by_arrival)

    def observe(self, event: PolicyEvent) -> None:
        self.line.observe(event)

    def plan(self, view: SchedulerView) -> StepPlan:
        def dearest_first(request: RequestView, now_ns: int) -> tuple[int, int]:
            lost = request.computed * (1 + request.preemptions)
            return (-lost * 1000 // (1 + view.exclusive_pages(request)) - lost, request.id)

        return pack(view, self.line, rank=dearest_first)
