"""When connections are told what is new: in rounds, all that have something to say one after another.

While the loop has time, a round comes with the next turn.  Once its core is full rounds come apart, up to ``MOST_S``,
and what came for a stream meanwhile goes out in one piece: a write costs more than anything else that a token needs,
so that many more tokens get through, a little later each.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

SLICE_S = 0.0015
"""A round gives the loop a turn so often: between two steps the engine needs a few turns, and the device waits."""
MOST_SLICE_S = 0.005
"""Or, where all else takes longer, half of the time up to this: who is being answered comes before who asks."""
PER_LOOK = 4
"""Connections between two looks at the clock."""
MOST_S, LEAST_S = 0.25, 0.005
"""From one round to the next, at the most; and the first step away from nothing."""
LOOK_S = 0.1
FULL, FREE = 0.9, 0.75
"""Of a core: with more than the first rounds come apart, with less than the second they come together again."""
LATE_S = 0.05
"""A loop that is so late is full too, whoever has the core."""


class Outlet:
    """On the running loop, once it is used."""

    def __init__(self) -> None:
        self.gap_s = 0.0
        """From one round to the next, at least."""
        self._due: deque[Callable[[], None]] = deque()
        self._armed = False
        self._began_s = self._looked_s = self._cpu_s = self._paused_s = 0.0

    def soon(self, say: Callable[[], None]) -> None:
        """Call ``say`` in the next round; it must not raise."""
        self._due.append(say)
        if not self._armed:
            self._armed = True
            loop = asyncio.get_running_loop()
            wait_s = self._began_s + self.gap_s - loop.time() if self.gap_s else 0.0
            if wait_s > 0:
                loop.call_later(wait_s, self._begin)
            else:
                loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._began_s = asyncio.get_running_loop().time()
        self._paused_s = time.monotonic()
        self._go_on()

    def _go_on(self) -> None:
        due, now_s = self._due, time.monotonic()
        until_s = now_s + max(SLICE_S, min(now_s - self._paused_s, MOST_SLICE_S))
        count = 0
        while due:
            due.popleft()()
            count += 1
            if not count % PER_LOOK and time.monotonic() > until_s:
                self._paused_s = time.monotonic()
                asyncio.get_running_loop().call_soon(self._go_on)
                return
        self._armed = False

    def look(self, late_s: float) -> None:
        """Called now and then, with how late the loop is: is there time?"""
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_S:
            return
        cpu_s = time.process_time()
        busy = (cpu_s - self._cpu_s) / (now_s - self._looked_s) if self._looked_s else 0.0
        self._looked_s, self._cpu_s = now_s, cpu_s
        if busy > FULL or late_s > LATE_S:
            self.gap_s = min(max(self.gap_s * 1.5, LEAST_S), MOST_S)
        elif busy < FREE:
            self.gap_s = self.gap_s * 0.7 if self.gap_s > LEAST_S else 0.0
