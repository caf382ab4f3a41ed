"""When what happened to single requests, for clients that ask."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.core.events import Event, StepDone, Submitted
from stepwell.core.instructions import Admitted, Finished, Instruction, Launch
from stepwell.core.types import RequestId


class Times:
    """Of one request, in ns of the engine's clock; 0: it has not happened."""

    def __init__(self) -> None:
        self.arrived_ns = 0
        self.admitted_ns = 0
        self.first_ns = 0
        self.ended_ns = 0
        self.first_step = 0
        """The step that its first token comes from, while that is computed."""
        self.steps = 0
        """Launched from its admission to its end."""
        self._began = 0

    def admitted(self, now_ns: int, step: int) -> None:
        """The first time counts."""
        if not self.admitted_ns:
            self.admitted_ns, self._began = now_ns, step

    def ended(self, now_ns: int, step: int) -> None:
        self.ended_ns, self.steps = now_ns, step - self._began


class RequestTimes:
    """Watches those that somebody asked about; an observer of the engine that costs nothing while nobody asks."""

    def __init__(self) -> None:
        self._watched: dict[RequestId, Times] = {}
        self._step = 0

    def watch(self, request: RequestId) -> Times:
        """Before its first turn."""
        times = self._watched[request] = Times()
        return times

    def forget(self, request: RequestId) -> None:
        self._watched.pop(request, None)

    def observe(self, now_ns: int, events: Sequence[Event], out: Sequence[Instruction]) -> None:
        """Take in one turn."""
        if not self._watched:
            return
        for event in events:
            if isinstance(event, Submitted) and event.request in self._watched:
                self._watched[event.request].arrived_ns = now_ns
            elif isinstance(event, StepDone):
                self._done(now_ns, event.step)
        for each in out:
            if isinstance(each, Launch):
                self._launched(each)
            elif isinstance(each, Admitted) and each.request in self._watched:
                self._watched[each.request].admitted(now_ns, self._step)
            elif isinstance(each, Finished) and each.request in self._watched:
                self._watched[each.request].ended(now_ns, self._step)

    def _launched(self, launch: Launch) -> None:
        self._step = launch.step
        for request, _, _, samples in launch.slices:
            times = self._watched.get(request) if samples else None
            if times is not None and not times.first_ns:
                times.first_step = launch.step

    def _done(self, now_ns: int, step: int) -> None:
        for times in self._watched.values():
            if times.first_step == step and not times.first_ns:
                times.first_ns = now_ns
