"""Stall-free batches: a step takes as much of the prompts as it may without holding up the answers that run.

Source: Agrawal et al., Sarathi-Serve, OSDI'24 (decodes first, prompts in chunks); the chunk as large as the slack of
those who decode allows, as in QoServe (Goel et al., "Niyama", 2025): the k-th token of a request is due at its arrival,
plus ``ttft_ms`` and k times ``tpot_ms`` of its class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

import msgspec

from stepwell.core.plan import StepPlan
from stepwell.core.protocols import CostModel, PolicyEvent, Promises, RequestView, SchedulerView
from stepwell.policies.step_time import Paces, prompt_tokens_within
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
        """A step is to take no longer while somebody decodes; nor than the ``tpot_ms`` of any class that is there."""
        most_ms: Annotated[float, msgspec.Meta(ge=0, le=1_000_000)] = 0.0
        """Where everybody is ahead of their objectives, a step may use that up, and take so long; 0: it may not."""
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
        self.most_ns = seconds(options.most_ms / 1000)
        self.line = OrderedLine(by_arrival)
        self.paces = Paces()

    def observe(self, event: PolicyEvent) -> None:
        self.line.observe(event)
        self.paces.observe(event)

    def plan(self, view: SchedulerView) -> StepPlan:
        busy = view.decoding and (view.loose or view.waiting)
        if not busy:
            return pack(view, self.line, mode=self.options.preempt)
        return pack(view, self.line, mode=self.options.preempt, prefill=self.chunk(view))

    def chunk(self, view: SchedulerView) -> int:
        """The most prompt tokens with which the step is estimated to stay within the bound."""
        kv_tokens = view.decoding_tokens() + sum([request.known for request in view.loose.values()])
        least, most = self.options.least, self.demand(view)
        bound_ns, prompts = self.bound_ns(view), 1 + len(view.loose)
        return prompt_tokens_within(self.estimate, bound_ns, len(view.decoding), kv_tokens, prompts, least, most)

    def demand(self, view: SchedulerView) -> int:
        """Prompt tokens that the step could take at most; counted while those who ask are few."""
        if len(view.waiting) + len(view.loose) > FEW:
            return view.token_budget
        asked = sum([request.pending for table in (view.loose, view.waiting) for request in table.values()])
        return min(asked, view.token_budget)

    def bound_ns(self, view: SchedulerView) -> int:
        """How long the step may take for those who decode."""
        if not self.most_ns:
            return self.paces.least_ns(self.step_ns)
        return min([self.allowed_ns(request, view.now_ns) for request in view.decoding.values()])

    def allowed_ns(self, request: RequestView, now_ns: int) -> int:
        """How long ``request`` may be kept waiting for its next token, its slack used.

        One that is late already is to keep pace from now on: a promise that was broken is no reason to stop prompts.
        """
        tpot_ns = request.tpot_ns
        if not tpot_ns:
            return self.step_ns
        due_ns = request.arrival_ns + request.ttft_ns + request.generated * tpot_ns
        return max(min(self.step_ns, tpot_ns), min(due_ns - now_ns, self.most_ns))
