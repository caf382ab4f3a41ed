"""Expected-weighted shortest job first: the least expected work for its weight comes first.

For: paying and free users on one server, where short answers should be quick and a paying user's long one need not wait
for every free short one.  Smith's rule (1956): in the order of work divided by weight, the weighted mean wait is least.
Weights are those of the tenants; how long an answer will be, a predictor guesses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from stepwell.core.plan import StepPlan
from stepwell.core.protocols import PolicyEvent, Predictor, Promises, RequestView, SchedulerView
from stepwell.policies.toolkit import WorkLine, WorkOptions, pack, seconds


class WeightedSjf:
    """Least expected work for its weight first; the oldest request comes first at ``aging_s``."""

    api_version = 1
    promises = Promises(work_conserving=True, bounded_wait=True)
    parts: ClassVar[Mapping[str, str]] = {"predictor": "predictors"}

    class Options(WorkOptions, frozen=True, forbid_unknown_fields=True):
        """How work is guessed, and when age overrules it."""

    def __init__(self, options: Options, predictor: Predictor) -> None:
        self.options = options
        self.predictor = predictor
        self.jobs = WorkLine(self.share, predictor, seconds(options.aging_s))

    def share(self, request: RequestView, now_ns: int) -> tuple[int, int]:
        """Work by weight, in thousandths of a prompt token."""
        work = request.prompt_tokens + self.options.output_cost * self.jobs.guesses.output(request)
        return (round(1000 * work / request.weight), request.id)

    def observe(self, event: PolicyEvent) -> None:
        self.jobs.observe(event)

    def plan(self, view: SchedulerView) -> StepPlan:
        return pack(view, self.jobs.line)

    def dump(self) -> object:
        return self.jobs.guesses.dump()

    def load(self, data: Any) -> None:
        self.jobs.load(data)
