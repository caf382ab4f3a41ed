"""Static batching, the baseline that continuous batching is measured against (Yu et al., Orca, OSDI'22, section 2).

A batch is filled while nobody in it has begun to decode, then runs until its last request ends; only then the next
one is formed.  Seats of requests that end early stay empty.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from stepwell.core.plan import StepPlan
from stepwell.core.protocols import PolicyEvent, Promises, SchedulerView
from stepwell.policies.toolkit import OrderedLine, by_arrival, pack


class Static:
    """Static batching in order of arrival: no request joins a batch that has begun to decode."""

    name = "static"
    promises = Promises(bounded_wait=True)

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """``batch_size``: requests a batch holds at most (the running limit, if that is smaller)."""

        batch_size: Annotated[int, msgspec.Meta(ge=1)] = 32

    def __init__(self, options: Options) -> None:
        self.batch_size = options.batch_size
        self.line = OrderedLine(by_arrival)

    def observe(self, event: PolicyEvent) -> None:
        self.line.observe(event)

    def plan(self, view: SchedulerView) -> StepPlan:
        begun = next((request for request in view.decoding.values()), None)
        if begun is None or begun.generated <= 1:
            seats = min(self.batch_size, view.running_limit) - view.running
            plan = pack(view, self.line, seats=seats, decode=False)
            if plan.admit or plan.slices or plan.resume:
                return plan
        return pack(view, self.line, seats=0)
