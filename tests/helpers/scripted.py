"""A policy for tests: first come, first served, but request 1 is preempted wherever a script says."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from stepwell.core.plan import Preemption, StepPlan
from stepwell.core.protocols import PolicyEvent, Promises, RequestView, SchedulerView
from stepwell.core.types import PreemptMode, RequestState
from stepwell.policies.fcfs import Fcfs

Moment = Callable[[RequestView], bool]


def outputs(count: int) -> Moment:
    return lambda request: request.generated == count


def computed(count: int) -> Moment:
    return lambda request: request.computed == count


class Scripted:
    """Preempts request 1 at each of the moments, in order; asks to be asked before every step."""

    promises = Promises()

    def __init__(self, moments: list[Moment], mode: PreemptMode, victim: int = 1) -> None:
        self.fcfs = Fcfs(Fcfs.Options())
        self.moments = moments
        self.mode: PreemptMode = mode
        self.victim = victim
        self.prompts: set[int] = set()

    def observe(self, event: PolicyEvent) -> None:
        self.fcfs.observe(event)

    def plan(self, view: SchedulerView) -> StepPlan:
        request = view.decoding.get(self.victim) or view.loose.get(self.victim)
        if request is not None and request.state is not RequestState.SWAPPING_IN:
            self.prompts.add(request.prompt_tokens)
            if self.moments and self.moments[0](request):
                del self.moments[0]
                return StepPlan(preempt=[Preemption(self.victim, self.mode, "script")])
        return msgspec.structs.replace(self.fcfs.plan(view), repeat=0)
