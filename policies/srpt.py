"""Shortest remaining processing time: who is guessed to need the least from here on comes first, by preemption too.

Source: Schrage, 1968 (no order has a shorter mean response time on one server); Harchol-Balter et al., TOCS 2003.
A running request gives way only to a waiting one with strictly less work left, and only where seats or pages are
short; what is left of a running one falls with every token, so nobody is sent back and forth.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from stepwell.core.plan import StepPlan
from stepwell.core.protocols import PolicyEvent, Predictor, Promises, RequestView, SchedulerView
from stepwell.policies.line import Key
from stepwell.policies.running import Running
from stepwell.policies.toolkit import pack, seconds
from stepwell.policies.victims import PreemptChoice
from stepwell.policies.work import WorkLine, WorkOptions


class Srpt:
    """Shortest predicted remaining work first, with preemption; the oldest request ages to the front."""

    name = "srpt"
    promises = Promises(work_conserving=True, bounded_wait=True)
    parts: ClassVar[Mapping[str, str]] = {"predictor": "predictors"}

    class Options(WorkOptions, frozen=True, forbid_unknown_fields=True):
        """How work is guessed, how longer requests give way, and when age overrules both."""

        preempt: PreemptChoice = "auto"
        """How a longer request gives way."""

    def __init__(self, options: Options, predictor: Predictor) -> None:
        self.options = options
        self.predictor = predictor
        self.jobs = WorkLine(self.work, predictor, seconds(options.aging_s))
        self.running = Running(self.jobs.rank)

    def work(self, request: RequestView, now_ns: int) -> Key:
        """The work that is left of a request, in prompt tokens."""
        return (request.pending + self.jobs.guesses.left(request) * self.options.output_cost, request.id)

    def observe(self, event: PolicyEvent) -> None:
        self.jobs.observe(event)
        self.running.observe(event)

    def plan(self, view: SchedulerView) -> StepPlan:
        line, rank = self.jobs.line, self.jobs.rank
        line.start(view.now_ns)
        yields = self.running.any_worse(line.head(), view.now_ns)
        return pack(view, line, rank=rank, mode=self.options.preempt, yields=yields)

    def dump(self) -> object:
        return self.jobs.guesses.dump()

    def load(self, data: Any) -> None:
        self.jobs.load(data)
        self.running.reorder(self.jobs.queue.now_ns)
