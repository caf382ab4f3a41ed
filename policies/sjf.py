"""Shortest job first: who is guessed to need the least work is admitted first; whoever runs goes on.

Source: the order that minimises the mean wait (Smith, 1956), for LLM requests with a predicted length as in Fu et al.,
"Efficient LLM Scheduling by Learning to Rank", NeurIPS'24.  How good it is depends on the predictor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from stepwell.core.plan import StepPlan
from stepwell.core.protocols import PolicyEvent, Predictor, Promises, RequestView, SchedulerView
from stepwell.policies.line import Key
from stepwell.policies.toolkit import pack, seconds
from stepwell.policies.work import WorkLine, WorkOptions


class Sjf:
    """Shortest predicted job first, without preemption; the oldest request ages to the front."""

    name = "sjf"
    promises = Promises(work_conserving=True, bounded_wait=True)
    parts: ClassVar[Mapping[str, str]] = {"predictor": "predictors"}

    class Options(WorkOptions, frozen=True, forbid_unknown_fields=True):
        """How work is guessed, and when age overrules it."""

    def __init__(self, options: Options, predictor: Predictor) -> None:
        self.options = options
        self.predictor = predictor
        self.jobs = WorkLine(self.work, predictor, seconds(options.aging_s))

    def work(self, request: RequestView, now_ns: int) -> Key:
        """The whole work of a request, in prompt tokens."""
        return (request.prompt_tokens + self.jobs.guesses.output(request) * self.options.output_cost, request.id)

    def observe(self, event: PolicyEvent) -> None:
        self.jobs.observe(event)

    def plan(self, view: SchedulerView) -> StepPlan:
        return pack(view, self.jobs.line)

    def dump(self) -> object:
        return self.jobs.guesses.dump()

    def load(self, data: Any) -> None:
        self.jobs.load(data)
