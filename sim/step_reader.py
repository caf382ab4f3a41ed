"""Follows a journal step by step: each finished step with its shape and its times."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence

import msgspec

from stepwell.core.events import Event, StepDone, StepFailed, Submitted
from stepwell.core.instructions import Finished, Instruction, Launch, Rejected
from stepwell.core.protocols import BatchShape
from stepwell.core.types import FOREVER, RequestId
from stepwell.sim.mirror import BatchMirror


class MeasuredStep(msgspec.Struct, frozen=True):
    """One finished step.  ``elapsed_ns``: of its ``period_ns``, what the device said; ``copy_ns``: of that, what its
    copies to and from the host took."""

    shape: BatchShape
    period_ns: int
    elapsed_ns: int = 0
    copy_ns: int = 0


class StepReader:
    """Follows turns that come without a gap, and hands out every step that did not fail.

    ``carried`` requests were there before (None: it is the beginning).  What is on the device of them is not known, so
    steps count from when the last of them has ended.
    """

    def __init__(self, found: Callable[[MeasuredStep], None], carried: Collection[RequestId] | None = None) -> None:
        self._carried = set(carried or ())
        self._late = carried is not None
        self._found = found
        self._live: dict[RequestId, None] = {}
        self._queue: deque[tuple[Launch, int, bool]] = deque()
        """Steps in flight, when each was launched, and whether all that is in it is known."""
        self._ended: list[RequestId] = []
        """They end once the step that is being executed is done: it still names them."""
        self._free_ns = 0
        """When the step before was done."""
        self._mirror = BatchMirror(lambda id: FOREVER if id in self._live else 0)

    def observe(self, now_ns: int, events: Sequence[Event], instructions: Sequence[Instruction]) -> None:
        """One turn, repeated steps one by one.  Raises ``ValueError`` if it does not fit the turns before."""
        for event in events:
            if isinstance(event, StepDone):
                self._done(now_ns, event)
            elif isinstance(event, StepFailed):
                self._queue.clear()
                self._release()
                self._mirror.reset()
            elif isinstance(event, Submitted):
                self._live[event.request] = None
        for instruction in instructions:
            if isinstance(instruction, Finished | Rejected):
                self._ended.append(instruction.request)
                self._carried.discard(instruction.request)
        if not self._queue:
            self._release()
        self._queue += [(each, now_ns, not self._carried) for each in instructions if isinstance(each, Launch)]

    def _release(self) -> None:
        for request in self._ended:
            self._live.pop(request, None)
            self._mirror.release(request)
        self._ended.clear()

    def _done(self, now_ns: int, done: StepDone) -> None:
        if not self._queue or self._queue[0][0].step != done.step:
            if self._late and (not self._queue or self._queue[0][0].step > done.step):
                return  # launched before the stretch began
            raise ValueError(f"step {done.step} is done, and is not the one that was launched")
        launch, launch_ns, known = self._queue.popleft()
        self._mirror.apply(launch)
        self._release()
        period_ns = now_ns - max(launch_ns, self._free_ns)
        self._free_ns = now_ns
        if not known or period_ns <= 0:
            return
        shape = msgspec.structs.replace(self._mirror.shape)
        if shape.prefill_tokens or shape.decode_requests or shape.swap_pages or shape.copied_pages:
            self._found(MeasuredStep(shape, period_ns, done.elapsed_ns, done.copy_ns))
