"""The latest turns of the scheduler, kept for whoever watches it decide.

One ring for all: a listener is nothing but a place in it, so that a slow one costs no memory and holds nobody up; it
is told how many turns it missed.  Nothing is encoded that nobody listens to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from stepwell.core.events import Event, Submitted
from stepwell.core.instructions import Instruction
from stepwell.core.metrics import ServingMetrics
from stepwell.transports.bell import Bell

FEW = 16
"""Keys of pages that an event may hold on to: those of a long prompt take a quarter of a MiB, which nobody is told."""


class Decided(NamedTuple):
    """One turn, as the journal has it."""

    now_ns: int
    events: Sequence[Event]
    instructions: Sequence[Instruction]
    decoding: int
    """Requests in the decode group after it."""


class DecisionRing:
    """An engine's observer; turns are numbered from 1, and the latest ``kept`` of them are there."""

    def __init__(self, kept: int, metrics: ServingMetrics) -> None:
        """``metrics`` observe before it."""
        self._metrics = metrics
        self._ring: deque[Decided] = deque(maxlen=kept)
        self.turn = 0
        """The latest."""
        self._bells: dict[Bell, None] = {}

    def observe(self, now_ns: int, events: Sequence[Event], instructions: Sequence[Instruction]) -> None:
        """Take in one turn."""
        self.turn += 1
        events = _lean(events)
        self._ring.append(Decided(now_ns, events, instructions, self._metrics.decoding))
        if self._bells:
            for bell in self._bells:
                bell.ring()

    @property
    def first(self) -> int:
        """The oldest turn that is there."""
        return self.turn - len(self._ring) + 1

    def since(self, turn: int, most: int) -> Iterator[tuple[int, Decided]]:
        """Up to ``most`` turns from ``turn`` on (not before ``first``), with their numbers."""
        first = self.first
        start = max(turn - first, 0)
        yield from enumerate(islice(self._ring, start, start + most), first + start)

    @property
    def listeners(self) -> int:
        return len(self._bells)

    def listen(self, bell: Bell) -> None:
        """Ring it at every turn, until ``leave``."""
        self._bells[bell] = None

    def leave(self, bell: Bell) -> None:
        """Harmless the second time."""
        self._bells.pop(bell, None)


def _lean(events: Sequence[Event]) -> Sequence[Event]:
    """The same without long lists of keys; most have none, and are left as they are."""
    for event in events:
        if type(event) is Submitted and len(event.keys) > FEW:
            return [msgspec.structs.replace(each, keys=[]) if type(each) is Submitted else each for each in events]
    return events
