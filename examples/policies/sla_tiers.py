"""Tiers of service: each class is a tier, and a worse tier waits at most so much longer than a better one.

For: gold, silver and bronze customers on one server, where bronze must not starve.  Strict ranks let it; here a request
stands in line as if it had come ``head_start_s`` later for every rank below the best, so its wait is bounded.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from stepwell.core.plan import StepPlan
from stepwell.core.protocols import PolicyEvent, Promises, RequestView, SchedulerView
from stepwell.policies.toolkit import OrderedLine, pack, seconds


class SlaTiers:
    """Better classes first, by a head start that bounds how long the others wait."""

    api_version = 1
    promises = Promises(work_conserving=True, bounded_wait=True)

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """How much a better tier counts."""

        head_start_s: Annotated[float, msgspec.Meta(ge=0, le=1_000_000)] = 10.0
        """A class goes before those of the next rank that came up to so long before it."""

    def __init__(self, options: Options) -> None:
        self.head_start_ns = seconds(options.head_start_s)
        self.line = OrderedLine(self.place)

    def place(self, request: RequestView, now_ns: int) -> tuple[int, int]:
        """When it would have come, had it been of the best tier."""
        return (request.arrival_ns + request.rank * self.head_start_ns, request.id)

    def observe(self, event: PolicyEvent) -> None:
        self.line.observe(event)

    def plan(self, view: SchedulerView) -> StepPlan:
        return pack(view, self.line, rank=self.place)
