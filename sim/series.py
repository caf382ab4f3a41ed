"""How a run went over time: requests running and waiting, pages in use.  An observer for either shell."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.core.events import Event, Submitted
from stepwell.core.instructions import Admitted, Finished, Instruction, Preempted, Rejected, Resumed
from stepwell.core.types import NS_PER_S, RequestId
from stepwell.sim.pages import PagesInUse


class Series:
    """Samples taken at the end of turns, at least ``every_ns`` apart.

    ``running`` are on the device; ``waiting`` are those in the line, preempted and swapped ones included.
    """

    def __init__(self, every_ns: int = NS_PER_S // 20) -> None:
        self.time_s: list[float] = []
        self.running: list[int] = []
        self.waiting: list[int] = []
        self.pages: list[int] = []
        self._every_ns = every_ns
        self._next_ns = 0
        self._running: dict[RequestId, None] = {}
        self._waiting: dict[RequestId, None] = {}
        self._pages = PagesInUse()

    def observe(self, now_ns: int, events: Sequence[Event], instructions: Sequence[Instruction]) -> None:
        """Take in one turn."""
        for event in events:
            if isinstance(event, Submitted):
                self._waiting[event.request] = None
        self._pages.observe(now_ns, events, instructions)
        for item in instructions:
            if isinstance(item, Admitted | Resumed):
                self._waiting.pop(item.request, None)
                self._running[item.request] = None
            elif isinstance(item, Preempted):
                self._running.pop(item.request, None)
                self._waiting[item.request] = None
            elif isinstance(item, Finished | Rejected):
                self._running.pop(item.request, None)
                self._waiting.pop(item.request, None)
        if now_ns >= self._next_ns:
            self._next_ns = now_ns + self._every_ns
            self.time_s.append(now_ns / NS_PER_S)
            self.running.append(len(self._running))
            self.waiting.append(len(self._waiting))
            self.pages.append(self._pages.used)
