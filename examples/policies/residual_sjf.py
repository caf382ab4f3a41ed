"""Residual shortest job first: by what is expected to be left; one that has outlived its guess counts as a long one.

For: answers whose lengths vary wildly, where a guess is often too low.  ``srpt`` takes a request that has passed its
guess to be nearly done; but lengths are heavy-tailed, and who has lived long is likely to live on.  Here it is expected
to last as long again as it has, so when pages run out it gives way before those that are truly near their end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from stepwell.core.plan import StepPlan
from stepwell.core.protocols import PolicyEvent, Predictor, Promises, RequestView, SchedulerView
from stepwell.policies.toolkit import WorkLine, WorkOptions, pack, seconds


class ResidualSjf:
    """Least expected residual work first; the oldest request comes first at ``aging_s``."""

    api_version = 1
    promises = Promises(work_conserving=True, bounded_wait=True)
    parts: ClassVar[Mapping[str, str]] = {"predictor": "predictors"}

    class Options(WorkOptions, frozen=True, forbid_unknown_fields=True):
        """How work is guessed, and when age overrules it."""

    def __init__(self, options: Options, predictor: Predictor) -> None:
        self.options = options
        self.predictor = predictor
        self.jobs = WorkLine(self.residual, predictor, seconds(options.aging_s))

    def residual(self, request: RequestView, now_ns: int) -> tuple[int, int]:
        """The expected rest of its work, in prompt tokens."""
        guess, done = self.jobs.guesses.output(request), request.generated
        left = guess - done if done < guess else done
        return (request.pending + self.options.output_cost * left, request.id)

    def observe(self, event: PolicyEvent) -> None:
        self.jobs.observe(event)

    def plan(self, view: SchedulerView) -> StepPlan:
        return pack(view, self.jobs.line, rank=self.jobs.rank)

    def dump(self) -> object:
        return self.jobs.guesses.dump()

    def load(self, data: Any) -> None:
        self.jobs.load(data)
