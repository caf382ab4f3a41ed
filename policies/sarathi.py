"""Stall-free batches: a step takes as much of the prompts as it may without holding up the answers that run.

Source: Agrawal et al., Sarathi-Serve, OSDI'24 (decodes first, prompts in chunks); the chunk as large as a bound on the
step's time allows, as in QoServe (Goel et al., "Niyama", 2025).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec

from stepwell.core.plan import StepPlan
from stepwell.core.protocols import BatchShape, CostModel, PolicyEvent, Promises, SchedulerView
from stepwell.policies.toolkit import OrderedLine, by_arrival, pack, seconds
from stepwell.policies.victims import PreemptChoice

FEW = 16
"""Requests whose tokens are worth adding up, to look no further than they reach."""


class Sarathi:
    """First come, first served, in chunks that keep the step's estimated time within a bound while answers run."""

    name = "sarathi"
    promises = Promises(bounded_wait=True)
    parts: ClassVar[Mapping[str, str]] = {"estimate": "cost_models"}

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """The bound, how step times are estimated, and how a request gives way."""

        step_ms: Annotated[float, msgspec.Meta(gt=0, le=1_000_000)] = 50.0
        """A step is to take no longer while somebody decodes."""
        least: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 16
        """Prompt tokens that a step may always take, so that prompts come to an end."""
        estimate: str = "linear"
        """Estimates step times: a registered name of kind cost_models."""
        estimate_options: Mapping[str, object] = {}
        preempt: PreemptChoice = "recompute"
        """How the latest arrival gives way when pages run out."""

    def __init__(self, options: Options, estimate: CostModel) -> None:
        self.options = options
        self.estimate = estimate
        self.step_ns = seconds(options.step_ms / 1000)
        self.line = OrderedLine(by_arrival)

    def observe(self, event: PolicyEvent) -> None:
        self.line.observe(event)

    def plan(self, view: SchedulerView) -> StepPlan:
        busy = view.decoding and (view.loose or view.waiting)
        if not busy:
            return pack(view, self.line, mode=self.options.preempt)
        return pack(view, self.line, mode=self.options.preempt, prefill=self.chunk(view))

    def chunk(self, view: SchedulerView) -> int:
        """The most prompt tokens with which the step is estimated to stay within the bound."""
        kv_tokens = view.decoding_tokens() + sum([request.known for request in view.loose.values()])
        low, high = self.options.least, max(self.options.least, self.demand(view))
        middle = high  # in most steps all that is asked for
        while low < high:
            shape = BatchShape(middle, len(view.decoding), kv_tokens, 0, 1 + len(view.loose))
            if self.estimate.step_ns(shape) <= self.step_ns:
                low = middle
            else:
                high = middle - 1
            middle = (low + high + 1) // 2
        return low

    def demand(self, view: SchedulerView) -> int:
        """Prompt tokens that the step could take at most; counted while those who ask are few."""
        if len(view.waiting) + len(view.loose) > FEW:
            return view.token_budget
        asked = sum([request.pending for table in (view.loose, view.waiting) for request in table.values()])
        return min(asked, view.token_budget)
