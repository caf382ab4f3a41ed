"""Expected-weighted shortest job first: the least expected work for its weight comes first.

For: paying and free users on one server, where short answers should be quick and a paying user's long one need not wait
for every free short one.  Smith's rule (1956): in the order of work divided by weight, the weighted mean wait is least.
Weights are those of the tenants; how long an answer will be, a predictor guesses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from stepwell.core.plan import StepPlan
from stepwell.core.protocols import PolicyEvent, Predictor, Promises, RequestView, SchedulerView
from stepwell.policies.toolkit import Aging, Guesses, pack, seconds


class WeightedSjf:
    """Least expected work for its weight first; the oldest request comes first at ``aging_s``."""

    api_version = 1
    promises = Promises(work_conserving=True, bounded_wait=True)
    parts: ClassVar[Mapping[str, str]] = {"predictor": "predictors"}

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        predictor: str = "quantile"
        predictor_options: Mapping[str, object] = {}
        output_cost: int = 16  # prompt tokens that are as much work as one output token
        aging_s: float = 30.0  # the oldest request comes first at this age

    def __init__(self, options: Options, predictor: Predictor) -> None:
        self.options = options
        self.predictor = predictor
        self.guesses = Guesses(predictor)
        self.queue = Aging(self.share, seconds(options.aging_s))

    def share(self, request: RequestView, now_ns: int) -> tuple[int, int]:
        """Work by weight, in thousandths of a prompt token."""
        work = request.prompt_tokens + self.options.output_cost * self.guesses.output(request)
        return (round(1000 * work / request.weight), request.id)

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
