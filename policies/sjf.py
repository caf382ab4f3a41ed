"""Shortest job first: who is guessed to need the least work is admitted first; whoever runs goes on.

Source: the order that minimises the mean wait (Smith, 1956), for LLM requests with a predicted length as in Fu et al.,
"Efficient LLM Scheduling by Learning to Rank", NeurIPS'24.  How good it is depends on the predictor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import msgspec

from stepwell.core.plan import StepPlan
from stepwell.core.protocols import PolicyEvent, Predictor, Promises, RequestView, SchedulerView
from stepwell.policies.aging import Aging
from stepwell.policies.line import Key
from stepwell.policies.toolkit import pack, seconds
from stepwell.policies.work import Guesses


class Sjf:
    """Shortest predicted job first, without preemption; the oldest request ages to the front."""

    name = "sjf"
    promises = Promises(work_conserving=True, bounded_wait=True)
    parts: ClassVar[Mapping[str, str]] = {"predictor": "predictors"}

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """How work is guessed, and when age overrules it."""

        predictor: str = "quantile"
        """Guesses output lengths: a registered name of kind predictors."""
        predictor_options: Mapping[str, object] = {}
        output_cost: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 16
        """Prompt tokens that are as much work as one output token."""
        aging_s: Annotated[float, msgspec.Meta(ge=0, le=1_000_000_000)] = 30.0
        """The oldest request comes first at this age."""

    def __init__(self, options: Options, predictor: Predictor) -> None:
        self.options = options
        self.predictor = predictor
        self.guesses = Guesses(predictor)
        self.queue = Aging(self.work, seconds(options.aging_s))

    def work(self, request: RequestView, now_ns: int) -> Key:
        """The whole work of a request, in prompt tokens."""
        return (request.prompt_tokens + self.guesses.output(request) * self.options.output_cost, request.id)

    def observe(self, event: PolicyEvent) -> None:
        self.guesses.observe(event)
        self.queue.observe(event)

    def plan(self, view: SchedulerView) -> StepPlan:
        return pack(view, self.queue.line)

    def dump(self) -> object:
        return self.guesses.dump()

    def load(self, data: Any) -> None:
        self.guesses.load(data)
        self.queue.reorder()
