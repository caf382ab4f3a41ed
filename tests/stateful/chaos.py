"""A policy that keeps every rule of the plan and no other: it holds, preempts, slices and repeats at random."""

from __future__ import annotations

import random

from stepwell.core.plan import Part, Preemption, StepPlan
from stepwell.core.protocols import PolicyEvent, Promises, RequestView, SchedulerView
from stepwell.core.types import FOREVER, PreemptMode, RequestId, RequestState, StepId
from stepwell.policies.toolkit import OrderedLine, by_arrival, pack


class Chaos:
    """Asked a second time for one step, it plans like FCFS, so that a step comes of it."""

    promises = Promises()

    def __init__(self, seed: int, *, rejects: bool = False) -> None:
        self.random = random.Random(seed)
        self.rejects = rejects
        self.line = OrderedLine(by_arrival)
        self.asked: StepId = 0

    def observe(self, event: PolicyEvent) -> None:
        self.line.observe(event)

    def plan(self, view: SchedulerView) -> StepPlan:
        again, self.asked = self.asked == view.step, view.step
        if again or self.chance(0.2):
            return pack(view, self.line, mode=self.mode())
        return _Draw(self, view).plan()

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def mode(self) -> PreemptMode:
        return "swap" if self.chance(0.6) else "recompute"


class _Draw:
    def __init__(self, chaos: Chaos, view: SchedulerView) -> None:
        self.chaos = chaos
        self.view = view
        self.budget = view.token_budget
        self.seats = view.running_limit - view.running
        self.preempt: list[Preemption] = []
        self.hold: list[RequestId] = []

    def plan(self) -> StepPlan:
        chaos, view = self.chaos, self.view
        staying = [request for request in view.decoding.values() if not self.sent(request) and not self.held(request)]
        decode = chaos.chance(0.85)
        if decode:
            self.budget -= len(staying)
        slices = self.slices()
        self.seats += len(self.preempt)
        reject, admit = self.admissions()
        resume = self.resumptions()
        if slices or admit or resume or reject or self.preempt or self.hold:
            wake_ns = view.now_ns + chaos.random.randint(1, 500) if chaos.chance(0.2) else 0
            return StepPlan(
                decode=decode,
                wake_ns=wake_ns,
                admit=admit,
                reserve="slice" if chaos.chance(0.5) else "present",
                slices=slices,
                preempt=self.preempt,
                resume=resume,
                hold=self.hold,
                reject=reject,
            )
        if decode and staying:
            wake_ns = view.now_ns + chaos.random.randint(1, 2000) if chaos.chance(0.3) else 0
            return StepPlan(repeat=chaos.random.choice((0, 1, 3, FOREVER)), wake_ns=wake_ns)
        return StepPlan(decode=False, wake_ns=view.now_ns + chaos.random.randint(1, 500))

    def sent(self, request: RequestView) -> bool:
        if request.protected or not self.chaos.chance(0.08):
            return False
        self.preempt.append(Preemption(request.id, self.chaos.mode(), "chance"))
        return True

    def held(self, request: RequestView) -> bool:
        if not self.chaos.chance(0.1):
            return False
        self.hold.append(request.id)
        return True

    def slices(self) -> list[Part]:
        slices: list[Part] = []
        for request in self.view.loose.values():
            if request.state is RequestState.SWAPPING_IN:
                if self.chaos.chance(0.9):
                    continue
            elif self.sent(request):
                continue
            if self.budget > 0 and self.chaos.chance(0.8):
                slices.append(self.part(request))
        return slices

    def part(self, request: RequestView) -> Part:
        most = min(request.pending, self.budget)
        tokens = most if self.chaos.chance(0.5) else self.chaos.random.randint(1, most)
        self.budget -= tokens
        return request.id, tokens

    def admissions(self) -> tuple[list[tuple[RequestId, str]], list[Part]]:
        reject: list[tuple[RequestId, str]] = []
        admit: list[Part] = []
        waiting = list(self.view.waiting.values())
        self.chaos.random.shuffle(waiting)
        for request in waiting:
            if self.chaos.rejects and self.chaos.chance(0.05):
                reject.append((request.id, "chance"))
            elif self.seats > 0 and self.budget > 0 and self.chaos.chance(0.6):
                self.seats -= 1
                admit.append(self.part(request))
        return reject, admit

    def resumptions(self) -> list[RequestId]:
        resume: list[RequestId] = []
        for request in self.view.swapped.values():
            if self.seats > 0 and self.chaos.chance(0.6):
                self.seats -= 1
                resume.append(request.id)
        return resume
