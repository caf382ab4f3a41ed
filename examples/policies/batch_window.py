"""A window for batch work: it is admitted only between two times of the day; interactive work at any time.

For: offline jobs that may run at night, on a server that people use by day.  Batch work that runs when the window
closes runs to its end.  Policies see no calendar, only nanoseconds since the start: ``started_at`` says when that was.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from stepwell.core.plan import StepPlan
from stepwell.core.protocols import PolicyEvent, Promises, RequestView, SchedulerView
from stepwell.core.types import NS_PER_S
from stepwell.policies.toolkit import OrderedLine, pack, seconds

DAY_NS = 86_400 * NS_PER_S
Hour = Annotated[float, msgspec.Meta(ge=0, le=24)]


class BatchWindow:
    """Interactive work first; classes of rank 1 and worse only within the window."""

    api_version = 1
    promises = Promises()

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        opens: Hour = 22.0  # hours after midnight
        closes: Hour = 6.0
        started_at: Hour = 0.0  # the time of day at which this server started

    def __init__(self, options: Options) -> None:
        self.opens_ns, self.started_ns = seconds(options.opens * 3600), seconds(options.started_at * 3600)
        self.open_for_ns = (seconds(options.closes * 3600) - self.opens_ns) % DAY_NS
        self.everybody, self.interactive = OrderedLine(self.by_class), OrderedLine(self.by_class)

    def by_class(self, request: RequestView, now_ns: int) -> tuple[int, int]:
        return (request.rank, request.id)

    def observe(self, event: PolicyEvent) -> None:
        self.everybody.observe(event)
        if event.request.rank == 0:
            self.interactive.observe(event)

    def plan(self, view: SchedulerView) -> StepPlan:
        since_ns = (view.now_ns + self.started_ns - self.opens_ns) % DAY_NS
        if since_ns < self.open_for_ns:
            turns_ns, plan = self.open_for_ns - since_ns, pack(view, self.everybody, rank=self.by_class)
        else:
            turns_ns, plan = DAY_NS - since_ns, pack(view, self.interactive, rank=self.by_class)
        waits = self.everybody.head() is not None
        return msgspec.structs.replace(plan, wake_ns=view.now_ns + turns_ns if waits else 0)
