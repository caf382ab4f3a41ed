"""Chat before batch, with aging: interactive requests are served first, and batch work fills what they leave.

A waiting chat request takes the seat or the pages of a running batch request, which keeps its work in the host tier
(or is recomputed, by option, or where that tier is full).

What makes chat's first token late beside batch is the step that runs when it comes, a step to make room, and company in
its own steps.  So batch leaves some pages free, and its answers pause while a chat prompt is computed; the first is
for the ``budget_share`` of its class to bound.

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
from stepwell.policies.leading import Leading, holding, others_decoding, with_spare
from stepwell.policies.line import Key
from stepwell.policies.running import Running
from stepwell.policies.toolkit import pack, seconds
from stepwell.policies.victims import PreemptChoice, promised

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


def by_class(request: RequestView, now_ns: int) -> Key:
    """The class's rank, then arrival."""
    return (request.rank, request.id)


class ChatBatch:
    """Chat before batch; batch ages into chat, gives way under pressure, and keeps its work."""

    name = "chat-batch"
    promises = Promises(bounded_wait=True, respects_rank=True)

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """When batch ranks as chat, how it gives way, and what is kept free of it."""

        aging_s: Annotated[float, msgspec.Meta(ge=0, le=1_000_000_000)] = 30.0
        """The oldest batch request ranks as chat at this age."""
        preempt: PreemptChoice = "auto"
        """How batch gives way."""
        spare: Share = 0.1
        """Part of the pages that batch leaves free when it is taken in: chat then finds room at once."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.promises = promised(self.promises, options.preempt)
        self.queue = Aging(by_class, seconds(options.aging_s), may_age=lambda request: request.rank > 0)
        self.running = Running(self.rank)
        self.leading = Leading()
        self.admission = with_spare(self.rank, options.spare)

    def rank(self, request: RequestView, now_ns: int) -> Key:
        """The class's rank, or the best one for the elder once it has aged; then arrival."""
        return self.queue.rank(request, now_ns)

    def observe(self, event: PolicyEvent) -> None:
        self.queue.observe(event)
        self.running.observe(event)
        self.leading.observe(event)

    def plan(self, view: SchedulerView) -> StepPlan:
        line = self.queue.line
        line.start(view.now_ns)
        plan = pack(
            view,
            line,
            rank=self.rank,
            mode=self.options.preempt,
            yields=self.running.any_worse(line.head(), view.now_ns),
            admission=self.admission,
        )
        if self.leading.computed_by(plan) and self.running.any_above(0, view.now_ns):
            return holding(plan, view, others_decoding(view, self.rank))
        return plan
