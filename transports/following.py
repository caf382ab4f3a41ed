"""What a request's stream does not say: that it is in line, on the device, sent away or held; what the cache had."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from stepwell.core.events import Event, Pause, Submitted
from stepwell.core.instructions import Admitted, Instruction, Preempted, Rejected, Resumed
from stepwell.core.types import RequestId
from stepwell.transports.generation import Choice, Generation


class Following:
    """An engine's observer that tells it to those in ``watched``; ``open`` are all answers in progress."""

    def __init__(self, watched: Mapping[RequestId, tuple[Choice, Generation]], open: Iterable[Generation]) -> None:
        self._watched = watched
        self._open = open

    def observe(self, now_ns: int, events: Sequence[Event], out: Sequence[Instruction]) -> None:
        """Take in one turn."""
        watched = self._watched
        refused = [each.request for each in out if isinstance(each, Rejected)]
        for event in events:
            if isinstance(event, Submitted) and event.request in watched and event.request not in refused:
                choice, generation = watched[event.request]
                choice.accepted = True
                generation.tell()
            elif isinstance(event, Pause):
                for each in list(self._open):
                    each.pause(event.on)
        for item in out:
            if isinstance(item, Admitted) and item.request in watched:
                choice, generation = watched[item.request]
                choice.cached = choice.cached if choice.admitted else item.cached
                choice.admitted, choice.paused = True, False
                generation.tell()
            elif isinstance(item, Preempted | Resumed) and item.request in watched:
                choice, generation = watched[item.request]
                choice.paused = isinstance(item, Preempted)
                if isinstance(item, Preempted):
                    choice.preemptions, choice.paused_for = choice.preemptions + 1, item.reason
                generation.tell()
