"""By priority, as clients ask for it: the lowest number first, then arrival.

Source: strict priority of the textbook; the direction is that of vLLM's field ``priority``.  A running request gives
way to a waiting one of a strictly better priority.  The oldest request comes first once it is ``aging_s`` old, so that
nobody waits for ever, whatever others ask for.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from stepwell.core.plan import StepPlan
from stepwell.core.protocols import PolicyEvent, Promises, RequestView, SchedulerView
from stepwell.core.types import MAX_PRIORITY
from stepwell.policies.deadlines import Gives, mode_of
from stepwell.policies.line import Key
from stepwell.policies.running import Running
from stepwell.policies.toolkit import Aging, pack, seconds


class Priority:
    """The lowest priority number first; a better one is given way to, and the oldest request ages to the front."""

    name = "priority"
    promises = Promises(work_conserving=True, bounded_wait=True, respects_rank=True)

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """When age overrules priority, and how a running request gives way."""

        aging_s: Annotated[float, msgspec.Meta(ge=0, le=1_000_000_000)] = 30.0
        """The oldest request comes first at this age."""
        preempt: Gives = "auto"
        """How a running request gives way to one of a better priority."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.queue = Aging(self.wish, seconds(options.aging_s))
        self.running = Running(self.rank)

    def wish(self, request: RequestView, now_ns: int) -> Key:
        """Its priority, counted from 1; then arrival."""
        return (request.priority + MAX_PRIORITY + 1, request.id)

    def rank(self, request: RequestView, now_ns: int) -> Key:
        """The same, or the best of all for the elder once it has aged."""
        return self.queue.rank(request, now_ns)

    def observe(self, event: PolicyEvent) -> None:
        self.queue.observe(event)
        self.running.observe(event)

    def plan(self, view: SchedulerView) -> StepPlan:
        gives = self.options.preempt
        line = self.queue.line
        line.start(view.now_ns)
        yields = gives != "never" and self.running.any_worse(line.head(), view.now_ns)
        return pack(view, line, rank=self.rank, mode=mode_of(gives), yields=yields)
