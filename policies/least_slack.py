"""Least slack first: slack is the time to the deadline less the time that the request's prefill is estimated to take.

Source: Mok, "Fundamental design problems of distributed systems for the hard-real-time environment", MIT 1983; slack of
LLM requests as in SLOs-Serve (Chen et al., 2025).  All waiting requests lose slack at the same pace, so their order
stands still; a long prompt that is due late may come before a short one that is due soon.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec

from stepwell.core.plan import StepPlan
from stepwell.core.protocols import BatchShape, CostModel, PolicyEvent, Promises, RequestView, SchedulerView
from stepwell.policies.deadlines import Gives, due_ns, mode_of
from stepwell.policies.line import Key
from stepwell.policies.running import Running
from stepwell.policies.toolkit import OrderedLine, pack, seconds


class LeastSlack:
    """Least slack first: deadline less estimated prefill; what has more slack gives way."""

    name = "least-slack"
    promises = Promises(work_conserving=True, bounded_wait=True)
    parts: ClassVar[Mapping[str, str]] = {"estimate": "cost_models"}

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """Who has no deadline, how long a prefill takes, and how a running request gives way to a more urgent one."""

        otherwise_s: Annotated[float, msgspec.Meta(gt=0, le=1_000_000)] = 60.0
        """Due so long after arrival, for classes without a ``ttft_ms``."""
        estimate: str = "linear"
        """Estimates step times: a registered name of kind cost_models."""
        estimate_options: Mapping[str, object] = {}
        preempt: Gives = "auto"

    def __init__(self, options: Options, estimate: CostModel) -> None:
        self.options = options
        self.estimate = estimate
        self.otherwise_ns = seconds(options.otherwise_s)
        self.line = OrderedLine(self.slack)
        self.running = Running(self.slack)

    def slack(self, request: RequestView, now_ns: int) -> Key:
        """The latest time at which its first step may begin, then arrival."""
        tokens = request.prompt_tokens
        shape = BatchShape(prefill_tokens=tokens, prefill_requests=1, prefill_pairs=tokens * (tokens + 1) // 2)
        prefill_ns = self.estimate.step_ns(shape)
        return (due_ns(request, self.otherwise_ns) - prefill_ns, request.id)

    def observe(self, event: PolicyEvent) -> None:
        self.line.observe(event)
        self.running.observe(event)

    def plan(self, view: SchedulerView) -> StepPlan:
        gives = self.options.preempt
        self.line.start(view.now_ns)
        yields = gives != "never" and self.running.any_worse(self.line.head(), view.now_ns)
        return pack(view, self.line, rank=self.slack, mode=mode_of(gives), yields=yields)
