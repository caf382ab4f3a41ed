"""KV pages in use on the device, from instructions alone: an observer for either shell."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.core.events import Event
from stepwell.core.instructions import Admitted, Finished, Instruction, Launch, Preempted, Run


class PagesInUse:
    """``used`` are pages in the tables of requests, those that several share once; not what a cache merely keeps."""

    def __init__(self) -> None:
        self.used = 0

    def observe(self, now_ns: int, events: Sequence[Event], instructions: Sequence[Instruction]) -> None:
        """Take in one turn."""
        for item in instructions:
            if isinstance(item, Launch):
                self.used += len(item.growth) // 2 + sum(len(table) for _, table in item.tables)
            elif isinstance(item, Run):
                self.used += len(item.growth) // 3
            elif isinstance(item, Admitted):
                self.used -= item.shared
            elif isinstance(item, Preempted | Finished):
                self.used -= item.pages
