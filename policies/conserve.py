"""Batch fills what chat leaves: prompts and answers of batch ride in a step only as far as its predicted time allows.

Source: Qiao et al., "ConServe: Harvesting GPUs for Low-Latency and High-Throughput LLM Serving", 2024; HyGen (Sun et
al., 2025) bounds a step by a latency predictor in the same way.  The best class (rank 0) is online: it comes first, and
the others' answers pause while its prompts are computed.  While its answers run, a step takes in of the others what
keeps it within the time that a token may take (``tpot_ns`` of the class, or ``step_ms`` if that is less): first
answers, in order of arrival, then prompts.  Who is left out pauses and keeps its pages.  With nobody online only
prompts are bounded, because whoever comes next waits for the step that runs then.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from typing import Annotated, ClassVar

import msgspec

from stepwell.core.plan import StepPlan
from stepwell.core.protocols import BatchShape, CostModel, PolicyEvent, Promises, RequestView, SchedulerView
from stepwell.policies.chat_batch import Share, by_class
from stepwell.policies.leading import Leading, holding, others_decoding, with_spare
from stepwell.policies.running import Running
from stepwell.policies.step_time import Paces, most_within, prompt_tokens_within
from stepwell.policies.toolkit import OrderedLine, pack, seconds
from stepwell.policies.victims import PreemptChoice, promised

FORESIGHT = 1 << 12
"""Steps for which a plan is looked ahead: it holds no longer."""


class Conserve:
    """Chat as if it were alone; batch fills each step up to a bound on its predicted time."""

    name = "conserve"
    promises = Promises(respects_rank=True)
    parts: ClassVar[Mapping[str, str]] = {"estimate": "cost_models"}

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """The bound, how step times are predicted, and how batch gives way."""

        step_ms: Annotated[float, msgspec.Meta(gt=0, le=1_000_000)] = 25.0
        """A step that batch fills is to take no longer."""
        spare: Share = 0.1
        """Part of the pages that batch leaves free when it is taken in: chat then finds room at once."""
        estimate: str = "linear"
        """Estimates step times: a registered name of kind cost_models."""
        estimate_options: Mapping[str, object] = {}
        preempt: PreemptChoice = "auto"
        """How batch gives way."""

    def __init__(self, options: Options, estimate: CostModel) -> None:
        self.options = options
        self.promises = promised(self.promises, options.preempt)
        self.estimate = estimate
        self.step_ns = seconds(options.step_ms / 1000)
        self.line = OrderedLine(by_class)
        self.running = Running(by_class)
        self.leading = Leading()
        self.paces = Paces()
        self.admission = with_spare(by_class, options.spare)

    def observe(self, event: PolicyEvent) -> None:
        self.line.observe(event)
        self.running.observe(event)
        self.leading.observe(event)
        if event.request.rank == 0:
            self.paces.observe(event)

    def plan(self, view: SchedulerView) -> StepPlan:
        wanted = self.leading.tokens(view.token_budget)
        if wanted:
            plan = self._pack(view, wanted)
            return holding(plan, view, others_decoding(view, by_class)) if self.leading.computed_by(plan) else plan
        bound_ns = self.paces.least_ns(self.step_ns)
        decoding = len(view.decoding) + len(view.loose)
        kv_tokens = view.decoding_tokens() + sum([request.known for request in view.loose.values()])
        chats = bool(self.leading.live)
        held: list[RequestView] = []
        if chats and self._ns(decoding, kv_tokens) > bound_ns:
            others = sorted(others_decoding(view, by_class), key=lambda request: request.id)
            held = self._left_out(others, decoding - len(others), kv_tokens, bound_ns)
            decoding -= len(held)
            kv_tokens -= sum([request.known for request in held])
        riding = sum([request.pending == 1 for request in view.loose.values()]) if view.loose else 0
        prompts, least = 1 + len(view.loose), 0 if chats else 1
        chunk = prompt_tokens_within(self.estimate, bound_ns, decoding, kv_tokens, prompts, least, view.token_budget)
        plan = self._pack(view, chunk + riding)
        if held:
            return holding(plan, view, held)
        if plan.repeat and chats:
            steps = most_within(
                0, FORESIGHT, lambda count: self._ns(decoding, kv_tokens + count * decoding) <= bound_ns
            )
            return msgspec.structs.replace(plan, repeat=min(plan.repeat, steps))
        return plan

    def _left_out(self, others: list[RequestView], best: int, kv_tokens: int, bound_ns: int) -> list[RequestView]:
        """The latest of ``others``, beside ``best`` requests that go on, until the rest fits into the bound."""
        known = list(accumulate([request.known for request in others], initial=0))
        rest = kv_tokens - known[-1]
        count = most_within(0, len(others), lambda count: self._ns(best + count, rest + known[count]) <= bound_ns)
        return others[count:]

    def _ns(self, decoding: int, kv_tokens: int) -> int:
        return self.estimate.step_ns(BatchShape(0, decoding, kv_tokens))

    def _pack(self, view: SchedulerView, prefill: int) -> StepPlan:
        line = self.line
        line.start(view.now_ns)
        return pack(
            view,
            line,
            rank=by_class,
            mode=self.options.preempt,
            yields=self.running.any_worse(line.head(), view.now_ns),
            prefill=prefill,
            admission=self.admission,
        )
