"""Chat before batch, with aging: interactive requests are served first, and batch work fills what they leave.

A waiting chat request takes the seat or the pages of a running batch request, which keeps its work in the host tier
(or is recomputed, by option, or where that tier is full).

Aging: the oldest live batch request ranks as chat once it is older than ``aging_s``; it then gives way to nobody, and
when it ends the next oldest may.  So every batch request is served in bounded time, and however many of them have aged,
chat yields no more than one seat to them.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from stepwell.core.plan import StepPlan
from stepwell.core.protocols import PolicyEvent, Promises, RequestView, SchedulerView
from stepwell.policies.aging import Aging
from stepwell.policies.line import Key
from stepwell.policies.running import Running
from stepwell.policies.toolkit import pack, seconds
from stepwell.policies.victims import PreemptChoice


def by_class(request: RequestView, now_ns: int) -> Key:
    """The class's rank, then arrival."""
    return (request.rank, request.id)


class ChatBatch:
    """Chat before batch; batch ages into chat, gives way under pressure, and keeps its work."""

    name = "chat-batch"
    promises = Promises(work_conserving=True, bounded_wait=True, respects_rank=True)

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """``aging_s``: the oldest batch request ranks as chat at this age.  ``preempt``: how batch gives way."""

        aging_s: Annotated[float, msgspec.Meta(ge=0, le=1_000_000_000)] = 30.0
        preempt: PreemptChoice = "swap"

    def __init__(self, options: Options) -> None:
        self.options = options
        self.queue = Aging(by_class, seconds(options.aging_s), may_age=lambda request: request.rank > 0)
        self.running = Running(self.rank)

    def rank(self, request: RequestView, now_ns: int) -> Key:
        """The class's rank, or the best one for the elder once it has aged; then arrival."""
        return self.queue.rank(request, now_ns)

    def observe(self, event: PolicyEvent) -> None:
        self.queue.observe(event)
        self.running.observe(event)

    def plan(self, view: SchedulerView) -> StepPlan:
        line = self.queue.line
        line.start(view.now_ns)
        yields = self.running.any_worse(line.head(), view.now_ns)
        return pack(view, line, rank=self.rank, mode=self.options.preempt, yields=yields)
