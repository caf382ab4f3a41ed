"""A device for tests that feed the scheduler by hand: every step takes the same time, nothing ends by itself."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.core.events import Event, StepDone
from stepwell.core.instructions import Instruction, Launch
from stepwell.core.scheduler import Scheduler
from stepwell.core.types import NS_PER_MS
from stepwell.tests.helpers.timeline import Timeline

STEP_NS = 10 * NS_PER_MS


class Device:
    """Depth 1.  ``timeline`` has seen everything; requests end at their ``max_tokens``."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.timeline = Timeline()
        self.now_ns = 0
        self.step = 0

    def send(self, events: Sequence[Event]) -> list[Instruction]:
        out = self.scheduler.handle(self.now_ns, events)
        self.timeline(self.now_ns, events, out)
        for it in out:
            if isinstance(it, Launch):
                self.step = it.step
        return out

    def run(self, steps: int = 1_000_000) -> None:
        """Finish the step in flight and those that follow, at most so many."""
        while self.step and steps:
            self.now_ns += STEP_NS
            step, self.step = self.step, 0
            self.send([StepDone(step, elapsed_ns=STEP_NS)])
            steps -= 1
