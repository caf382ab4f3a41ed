"""Chat before batch, with aging: interactive requests are served first, and batch work fills what they leave.

A waiting chat request takes the seat or the pages of a running batch request, which keeps its work in the host tier
(or is recomputed, by option, or where that tier is full).  A batch request older than ``aging_s`` ranks as chat, so
that it is served in order of arrival among chat and gives way to nobody.
"""

from __future__ import annotations

import msgspec

from stepwell.core.plan import StepPlan
from stepwell.core.protocols import PolicyEvent, Promises, RequestView, SchedulerView
from stepwell.core.types import PreemptMode
from stepwell.policies.line import Key
from stepwell.policies.toolkit import OrderedLine, pack, seconds


class ChatBatch:
    """Chat before batch; batch ages into chat, gives way under pressure, and keeps its work."""

    name = "chat-batch"
    promises = Promises(work_conserving=True, bounded_wait=True, respects_rank=True)

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """``aging_s``: a request older than this ranks as chat.  ``preempt``: how batch gives way."""

        aging_s: float = 30.0
        preempt: PreemptMode = "swap"

    def __init__(self, options: Options) -> None:
        self.options = options
        self.aging_ns = seconds(options.aging_s)
        self.line = OrderedLine(self.rank, self.ages_at)

    def rank(self, request: RequestView, now_ns: int) -> Key:
        """The class's rank, or the best one once the request has aged; then arrival."""
        aged = now_ns - request.arrival_ns >= self.aging_ns
        return (0 if aged else request.rank, request.id)

    def ages_at(self, request: RequestView) -> int | None:
        """When ``rank`` changes by itself; None for a class that is served first anyway."""
        return request.arrival_ns + self.aging_ns if request.rank else None

    def observe(self, event: PolicyEvent) -> None:
        self.line.observe(event)

    def plan(self, view: SchedulerView) -> StepPlan:
        return pack(view, self.line, rank=self.rank, mode=self.options.preempt, yields=True)
