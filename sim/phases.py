"""What each request does at each time, told as it changes: an observer for either shell, and for journals."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stepwell.core.events import Event, RunDone, StepDone, StepFailed, Submitted
from stepwell.core.instructions import Admitted, Finished, Instruction, Launch, Preempted, Rejected, Resumed
from stepwell.core.snapshot import RequestSnapshot, SchedulerSnapshot
from stepwell.core.types import SWAPPED, SWAPPING_OUT, WAITING, RequestId, StepId

QUEUED, PREFILL, DECODE, SWAPPED_OUT, PREEMPTED, GONE = "queued", "prefill", "decode", "swapped", "preempted", ""
"""In line for the first time; its prompt (or all that it lost) is computed; it answers; its pages are in the host tier;
its pages were dropped and it is in line again; it ended."""

PHASES = (QUEUED, PREFILL, DECODE, SWAPPED_OUT, PREEMPTED)
ON_DEVICE = (PREFILL, DECODE)

Tell = Callable[[int, RequestId, str], None]
"""Hears of a change: time in ns, request, the phase that begins."""


class Phases:
    """Follows every live request.  ``now`` says who is in which phase; ``counts`` how many are in each."""

    def __init__(self, tell: Tell) -> None:
        self.now: dict[RequestId, str] = {}
        self.counts = dict.fromkeys(PHASES, 0)
        self._tell = tell
        self._samples: dict[StepId, list[RequestId]] = {}
        """Of steps in flight, the requests whose slice gives a token."""
        self._answers: dict[RequestId, None] = {}
        """Those that have given a token since their last admission: what a resumed one goes on with."""

    def begin(self, snapshot: SchedulerSnapshot) -> None:
        """Start in the middle of things."""
        self._samples = {step.id: step.sampled for step in snapshot.inflight}
        for each in snapshot.requests:
            if each.stands and each.state is not WAITING:
                self._answers[each.id] = None
            self._put(each.id, snapshot.now_ns, self._phase(each))

    def observe(self, now_ns: int, events: Sequence[Event], instructions: Sequence[Instruction]) -> None:
        """Take in one turn."""
        for event in events:
            if isinstance(event, StepDone | RunDone):
                at_ns = now_ns if isinstance(event, StepDone) else event.done_ns[0]
                for id in self._samples.pop(event.step, ()):
                    self._sampled(id, at_ns)
            elif isinstance(event, Submitted):
                self._put(event.request, now_ns, QUEUED)
            elif isinstance(event, StepFailed):
                self._samples.clear()
        for item in instructions:
            self._follow(now_ns, item)

    def _follow(self, now_ns: int, item: Instruction) -> None:
        if isinstance(item, Launch):
            sampled = [id for id, _, _, samples in item.slices if samples]
            if sampled:
                self._samples[item.step] = sampled
        elif isinstance(item, Admitted):
            self._answers.pop(item.request, None)
            self._put(item.request, now_ns, PREFILL)
        elif isinstance(item, Resumed):
            self._put(item.request, now_ns, DECODE if item.request in self._answers else PREFILL)
        elif isinstance(item, Preempted):
            self._put(item.request, now_ns, SWAPPED_OUT if item.mode == "swap" else PREEMPTED)
        elif isinstance(item, Finished | Rejected):
            self._put(item.request, now_ns, GONE)

    def _sampled(self, id: RequestId, now_ns: int) -> None:
        phase = self.now.get(id)
        if phase is None:
            return  # it ended before its step did
        self._answers[id] = None
        if phase == PREFILL:
            self._put(id, now_ns, DECODE)

    def _put(self, id: RequestId, now_ns: int, phase: str) -> None:
        before = self.now.pop(id, GONE)
        if before:
            self.counts[before] -= 1
        if phase:
            self.counts[phase] += 1
            self.now[id] = phase
        else:
            self._answers.pop(id, None)
        self._tell(now_ns, id, phase)

    def _phase(self, it: RequestSnapshot) -> str:
        if it.state is WAITING:
            return PREEMPTED if it.started else QUEUED
        if it.state in (SWAPPING_OUT, SWAPPED):
            return SWAPPED_OUT
        return DECODE if it.id in self._answers else PREFILL
