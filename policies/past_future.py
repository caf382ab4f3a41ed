"""Admission by the peak to come: a request is taken in if all that run, and it, are guessed to fit until they end.

Source: Gong et al., "Past-Future Scheduler for LLM Serving under SLA Guarantees", ASPLOS'25.  ``policies.peak`` says
what the peak is.  The paper draws lengths from the latest ones; here a predictor guesses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from stepwell.core.plan import StepPlan
from stepwell.core.protocols import PolicyEvent, Predictor, Promises, RequestView, SchedulerView
from stepwell.core.types import FOREVER
from stepwell.policies.peak import Peak
from stepwell.policies.toolkit import OrderedLine, by_arrival, pack
from stepwell.policies.victims import PreemptChoice
from stepwell.policies.work import Guesses, GuessOptions


class PastFuture:
    """First come, first served, but only while everybody's guessed growth fits: hardly anybody must give way."""

    name = "past-future"
    promises = Promises(bounded_wait=True)
    parts: ClassVar[Mapping[str, str]] = {"predictor": "predictors"}

    class Options(GuessOptions, frozen=True, forbid_unknown_fields=True):
        """How lengths are guessed, and how the latest arrival gives way where a guess was too low."""

        preempt: PreemptChoice = "recompute"

    def __init__(self, options: Options, predictor: Predictor) -> None:
        self.options = options
        self.predictor = predictor
        self.guesses = Guesses(predictor)
        self.line = OrderedLine(by_arrival)
        self.peak = Peak(self.guesses)
        self._over = FOREVER

    def observe(self, event: PolicyEvent) -> None:
        self.guesses.observe(event)
        self.peak.observe(event)
        self.line.observe(event)

    def plan(self, view: SchedulerView) -> StepPlan:
        self.peak.begin(view)
        self._over = FOREVER
        plan = pack(view, self.line, mode=self.options.preempt, admission=self.missing)
        if plan.repeat and plan.blocked is not None:
            # Those that run near their end while the head waits: the peak falls by a token a step, at most.
            return msgspec.structs.replace(plan, repeat=min(plan.repeat, self._over - 1))
        return plan

    def missing(self, view: SchedulerView, request: RequestView, bound: int, alone: bool) -> int:
        """Pages missing now, or those by which the peak passes the pool.  Who fits is counted from then on."""
        now = view.pages_missing(request, bound)
        if now:
            return now
        room = view.total_pages * view.page_size
        over = self.peak.with_one_more(view, request, room) - room
        if over <= 0 or alone:
            return 0
        self.peak.without()
        self._over = over
        return -(-over // view.page_size)

    def dump(self) -> object:
        return self.guesses.dump()

    def load(self, data: Any) -> None:
        self.guesses.load(data)
