"""Admission by the peak to come: a request is taken in if all that run, and it, are guessed to fit until they end.

Source: Gong et al., "Past-Future Scheduler for LLM Serving under SLA Guarantees", ASPLOS'25.  Requests end in the order
of what is left of them; just before the i-th last one ends, the i longest hold what they have now and i times what is
left of it.  The largest of these sums is the peak.  The paper draws lengths from the latest ones; here a predictor
guesses them.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from stepwell.core.plan import StepPlan
from stepwell.core.protocols import PolicyEvent, Predictor, Promises, RequestView, SchedulerView
from stepwell.core.types import FOREVER, PreemptMode
from stepwell.policies.toolkit import OrderedLine, by_arrival, pack
from stepwell.policies.work import Guesses


class PastFuture:
    """First come, first served, but only while everybody's guessed growth fits: hardly anybody must give way."""

    name = "past-future"
    promises = Promises(bounded_wait=True)
    parts: ClassVar[Mapping[str, str]] = {"predictor": "predictors"}

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """How lengths are guessed, and how the latest arrival gives way where a guess was too low."""

        predictor: str = "quantile"
        """Guesses output lengths: a registered name of kind predictors."""
        predictor_options: Mapping[str, object] = {}
        preempt: PreemptMode = "recompute"

    def __init__(self, options: Options, predictor: Predictor) -> None:
        self.options = options
        self.predictor = predictor
        self.guesses = Guesses(predictor)
        self.line = OrderedLine(by_arrival)
        self._batch: list[tuple[int, int]] = []
        self._over = FOREVER

    def observe(self, event: PolicyEvent) -> None:
        self.guesses.observe(event)
        self.line.observe(event)

    def plan(self, view: SchedulerView) -> StepPlan:
        self._batch, self._over = [], FOREVER
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
        if not self._batch:
            running = [*view.decoding.values(), *view.loose.values()]
            self._batch = sorted([self._entry(view, each) for each in running])
        batch = self._batch.copy()
        insort(batch, self._entry(view, request))
        over = peak(batch) - view.total_pages * view.page_size
        if over > 0 and not alone:
            self._over = over
            return -(-over // view.page_size)
        self._batch = batch
        return 0

    def _entry(self, view: SchedulerView, request: RequestView) -> tuple[int, int]:
        """As ``peak`` takes it; a table's last page is partly empty."""
        return (-self.guesses.left(request), request.known + view.page_size - 1)

    def dump(self) -> object:
        return self.guesses.dump()

    def load(self, data: Any) -> None:
        self.guesses.load(data)


def peak(batch: list[tuple[int, int]]) -> int:
    """Most tokens held at once, of (minus the tokens to come, tokens held now), in order."""
    most = held = 0
    for count, (less, now) in enumerate(batch, 1):
        held += now
        most = max(most, held - count * less)
    return most
