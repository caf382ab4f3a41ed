"""Every step with its time and its shape, told as it ends: an observer for either shell, and for journals."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from stepwell.core.events import Event, RunDone, StepDone, StepFailed, Submitted
from stepwell.core.instructions import Finished, Instruction, Launch, Rejected
from stepwell.core.protocols import BatchShape
from stepwell.core.snapshot import SchedulerSnapshot
from stepwell.core.types import FOREVER, WAITING, RequestId, StepId
from stepwell.sim.mirror import BatchMirror


class StepSpan(msgspec.Struct):
    """One step.  ``start_ns``: when it was launched, or the step before it was done if that was later.

    ``device_ns`` is what the device said that it took, ``copy_ns`` how much of that its copies to and from the host
    did.  ``failed`` holds the reason if nothing of it counts.
    """

    step: StepId
    start_ns: int
    end_ns: int
    shape: BatchShape
    device_ns: int = 0
    copy_ns: int = 0
    failed: str = ""

    @property
    def tokens(self) -> int:
        """Positions computed."""
        return self.shape.prefill_tokens + self.shape.decode_requests


class StepSpans:
    """Follows launches to their ends.  ``inflight`` are those launched and not done, as (step, launched at, shape).

    Of steps launched before a late beginning nobody knows the start: they are not told.
    """

    def __init__(self, tell: Callable[[StepSpan], None]) -> None:
        self.inflight: deque[tuple[StepId, int, BatchShape]] = deque()
        self._tell = tell
        self._free_ns = 0
        """Since when the device has been free for the next step."""
        self._live: dict[RequestId, None] = {}
        self._mirror = BatchMirror(lambda id: FOREVER if id in self._live else 0)

    def begin(self, snapshot: SchedulerSnapshot) -> None:
        """Start in the middle of things: the decode group, and what KV each request has."""
        members, mirror = dict.fromkeys(snapshot.members), self._mirror
        self._live.update((each.id, None) for each in snapshot.requests)
        known = [
            (each.id, 0, each.base + (snapshot.launched if each.id in members else 0), True)
            for each in snapshot.requests
            if each.state is not WAITING
        ]
        mirror.apply(Launch(0, slices=known))
        mirror.apply(Launch(0, joined=[id for id in members if id not in snapshot.joined]))

    def observe(self, now_ns: int, events: Sequence[Event], instructions: Sequence[Instruction]) -> None:
        """Take in one turn."""
        for event in events:
            if isinstance(event, StepDone):
                self._done(event.step, now_ns, event.elapsed_ns, event.copy_ns)
            elif isinstance(event, RunDone):
                for step, done_ns in enumerate(event.done_ns, event.step):
                    self._done(step, done_ns, 0, 0)
                    self._launch(done_ns, Launch(step + 1, True))
            elif isinstance(event, Submitted):
                self._live[event.request] = None
            elif isinstance(event, StepFailed):
                self._fail(now_ns, event.reason or "no reason given")
        for item in instructions:
            if isinstance(item, Launch):
                self._launch(now_ns, item)
            elif isinstance(item, Finished | Rejected):
                self._live.pop(item.request, None)
                self._mirror.release(item.request)

    def _launch(self, now_ns: int, launch: Launch) -> None:
        self._mirror.apply(launch)
        self.inflight.append((launch.step, now_ns, msgspec.structs.replace(self._mirror.shape)))

    def _done(self, step: StepId, now_ns: int, device_ns: int, copy_ns: int) -> None:
        if self.inflight and self.inflight[0][0] == step:
            _, launched_ns, shape = self.inflight.popleft()
            start_ns = max(launched_ns, self._free_ns)
            self._tell(StepSpan(step, start_ns, now_ns, shape, device_ns or now_ns - start_ns, copy_ns))
        self._free_ns = now_ns

    def _fail(self, now_ns: int, reason: str) -> None:
        """The one that was executed took the time; those behind it never began."""
        if self.inflight:
            step, launched_ns, shape = self.inflight[0]
            start_ns = max(launched_ns, self._free_ns)
            self._tell(StepSpan(step, start_ns, now_ns, shape, now_ns - start_ns, failed=reason))
        self.inflight.clear()
        self._mirror.reset()
        self._free_ns = now_ns
