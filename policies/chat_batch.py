"""Chat before batch, with aging: interactive requests are served first, and batch work fills what they leave.

A waiting chat request takes the seat or the pages of a running batch request, which keeps its work in the host tier
(or is recomputed, by option, or where that tier is full).

Aging: the oldest live batch request ranks as chat once it is older than ``aging_s``; it then gives way to nobody, and
when it ends the next oldest may.  So every batch request is served in bounded time, and however many of them have aged,
chat yields no more than one seat to them.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Annotated

import msgspec

from stepwell.core.plan import StepPlan
from stepwell.core.protocols import PolicyEvent, Promises, RequestView, SchedulerView
from stepwell.core.types import FINISHED, PreemptMode, RequestId
from stepwell.policies.line import Key
from stepwell.policies.toolkit import OrderedLine, pack, seconds


class ChatBatch:
    """Chat before batch; batch ages into chat, gives way under pressure, and keeps its work."""

    name = "chat-batch"
    promises = Promises(work_conserving=True, bounded_wait=True, respects_rank=True)

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """``aging_s``: the oldest batch request ranks as chat at this age.  ``preempt``: how batch gives way."""

        aging_s: Annotated[float, msgspec.Meta(ge=0, le=1_000_000_000)] = 30.0
        preempt: PreemptMode = "swap"

    def __init__(self, options: Options) -> None:
        self.options = options
        self.aging_ns = seconds(options.aging_s)
        self.line = OrderedLine(self.rank, self.ages_at)
        self._batch: list[tuple[RequestId, RequestView]] = []

    def elder(self) -> RequestView | None:
        """The oldest live request that is not served first by its class."""
        batch = self._batch
        while batch:
            request = batch[0][1]
            if request.state is not FINISHED:
                return request
            heappop(batch)
        return None

    def rank(self, request: RequestView, now_ns: int) -> Key:
        """The class's rank, or the best one for the elder once it has aged; then arrival."""
        rank = request.rank
        if rank and now_ns - request.arrival_ns >= self.aging_ns and request is self.elder():
            rank = 0
        return (rank, request.id)

    def ages_at(self, request: RequestView) -> int | None:
        """When ``rank`` changes by time alone; None if it does not."""
        return request.arrival_ns + self.aging_ns if request.rank and request is self.elder() else None

    def observe(self, event: PolicyEvent) -> None:
        request = event.request
        if request.rank and event.kind == "arrived":
            heappush(self._batch, (request.id, request))
        self.line.observe(event)
        if request.rank and event.kind == "finished":
            elder = self.elder()
            if elder is not None:
                self.line.refresh(elder, event.now_ns)

    def plan(self, view: SchedulerView) -> StepPlan:
        return pack(view, self.line, rank=self.rank, mode=self.options.preempt, yields=True)
