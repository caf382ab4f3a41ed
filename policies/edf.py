"""Earliest deadline first: a request's deadline is its arrival plus its class's objective for the first token.

Source: Liu and Layland, JACM 1973; for LLM requests the baseline of QoServe (Goel et al., "Niyama", 2025).
A class without an objective counts as due ``otherwise_s`` after arrival; a request that expires is due by then.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from stepwell.core.plan import StepPlan
from stepwell.core.protocols import PolicyEvent, Promises, RequestView, SchedulerView
from stepwell.policies.deadlines import Gives, due_ns, mode_of
from stepwell.policies.line import Key
from stepwell.policies.running import Running
from stepwell.policies.toolkit import OrderedLine, pack, seconds


class Edf:
    """Earliest deadline first, by the objectives of the classes; what is due later gives way."""

    name = "edf"
    promises = Promises(work_conserving=True, bounded_wait=True)

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """Who has no deadline, and how a running request gives way to one that is due earlier."""

        otherwise_s: Annotated[float, msgspec.Meta(gt=0, le=1_000_000)] = 60.0
        """Due so long after arrival, for classes without a ``ttft_ms``."""
        preempt: Gives = "auto"

    def __init__(self, options: Options) -> None:
        self.options = options
        self.otherwise_ns = seconds(options.otherwise_s)
        self.line = OrderedLine(self.due)
        self.running = Running(self.due)

    def due(self, request: RequestView, now_ns: int) -> Key:
        """Its deadline, then arrival."""
        return (due_ns(request, self.otherwise_ns), request.id)

    def observe(self, event: PolicyEvent) -> None:
        self.line.observe(event)
        self.running.observe(event)

    def plan(self, view: SchedulerView) -> StepPlan:
        gives = self.options.preempt
        self.line.start(view.now_ns)
        yields = gives != "never" and self.running.any_worse(self.line.head(), view.now_ns)
        return pack(view, self.line, rank=self.due, mode=mode_of(gives), yields=yields)
