"""Steps of a live journal, each with its shape and what it took.

What is measured is the **period** of a step: from its launch, or from the end of the step before it if that came
later, to the turn in which the scheduler heard of its end.  The next step is launched in that very turn, so periods
hold the whole loop of an engine (the device, the way there and back, the decision), and no time in which there was
nothing to do.  What the device said it took (``elapsed_ns``) leaves the rest out, and whoever adds that up predicts an
engine that nobody has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from stepwell.core.errors import UserError
from stepwell.core.events import Event, StepDone, StepFailed, Submitted
from stepwell.core.instructions import Finished, Instruction, Launch, Rejected
from stepwell.core.protocols import BatchShape
from stepwell.core.types import FOREVER, RequestId
from stepwell.sim.journal_read import MISFIT, Stretch, misfit, stretches, turns
from stepwell.sim.mirror import BatchMirror

SIMULATED = "sim"
"""The shell whose journals hold predictions."""


class MeasuredStep(msgspec.Struct, frozen=True):
    """One finished step.  ``elapsed_ns``: of its ``period_ns``, what the device said; ``copy_ns``: of that, what its
    copies to and from the host took."""

    shape: BatchShape
    period_ns: int
    elapsed_ns: int = 0
    copy_ns: int = 0


def measured_steps(path: Path, progress: Callable[[int], None] | None = None) -> list[MeasuredStep]:
    """Every step of the journal that begins at ``path``, in order; failed ones, and those of unknown shape, left out.

    Raises ``UserError`` for a damaged journal, and for a simulated one.
    """
    parts = stretches(path, progress)
    if parts[0].header.shell == SIMULATED:
        raise UserError(f"{path} was simulated: its step times are predictions, and nothing can be learnt from them")
    steps: list[MeasuredStep] = []
    try:
        for part in parts:
            reader = StepReader(part, steps.append)
            for record in part.records():
                for now_ns, events, instructions in turns(record):
                    reader.turn(now_ns, events, instructions)
    except MISFIT as error:
        raise misfit(path, error) from None
    return steps


class StepReader:
    """Follows one stretch.  Requests that were there before it have a length that it does not tell, so steps count
    from when the last of them has ended."""

    def __init__(self, part: Stretch, found: Callable[[MeasuredStep], None]) -> None:
        snapshot = part.snapshot()
        self._carried = {each.id for each in snapshot.requests} if snapshot is not None else set()
        self._late = snapshot is not None
        self._found = found
        self._live: dict[RequestId, None] = {}
        self._queue: deque[tuple[Launch, int]] = deque()
        """Steps in flight, and when each was launched."""
        self._free_ns = 0
        """When the step before was done."""
        self._mirror = BatchMirror(lambda id: FOREVER if id in self._live else 0)

    def turn(self, now_ns: int, events: Sequence[Event], instructions: Sequence[Instruction]) -> None:
        for event in events:
            if isinstance(event, StepDone):
                self._done(now_ns, event)
            elif isinstance(event, StepFailed):
                self._queue.clear()
                self._mirror.reset()
            elif isinstance(event, Submitted):
                self._live[event.request] = None
        for instruction in instructions:
            if isinstance(instruction, Launch):
                self._queue.append((instruction, now_ns))
            elif isinstance(instruction, Finished | Rejected):
                self._carried.discard(instruction.request)
                self._live.pop(instruction.request, None)
                self._mirror.release(instruction.request)

    def _done(self, now_ns: int, done: StepDone) -> None:
        if not self._queue or self._queue[0][0].step != done.step:
            if self._late and (not self._queue or self._queue[0][0].step > done.step):
                return  # launched before the stretch began
            raise ValueError(f"step {done.step} is done, and is not the one that was launched")
        launch, launch_ns = self._queue.popleft()
        self._mirror.apply(launch)
        period_ns = now_ns - max(launch_ns, self._free_ns)
        self._free_ns = now_ns
        if self._carried or period_ns <= 0:
            return
        shape = msgspec.structs.replace(self._mirror.shape)
        if shape.prefill_tokens or shape.decode_requests or shape.swap_pages or shape.copied_pages:
            self._found(MeasuredStep(shape, period_ns, done.elapsed_ns, done.copy_ns))
