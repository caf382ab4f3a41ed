"""How late the event loop is, as a histogram: what every timer, probe and stream of the process has to wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from stepwell.core.metrics_histogram import Histogram

PERIOD_S = 0.02
FADES = 0.992
"""A period; by half in less than two seconds."""
BUCKETS = (
    *(0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.09, 0.1),
    *(0.125, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0),
)


class LoopLag:
    """A timer that is due every ``PERIOD_S``, and how late it was each time.

    Times at which it was due are fixed in advance, so that a loop which stands still for a second is seen fifty times,
    as whoever comes at any moment would see it, and not once.
    """

    def __init__(self, told: Callable[[float], None]) -> None:
        """``told`` hears each time how late it was (s)."""
        self._told = told
        self.seconds = Histogram(BUCKETS)
        self.worst_s = 0.0
        """The worst of late, fading."""
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """On the running loop, until ``stop``."""
        loop = asyncio.get_running_loop()
        self._due_s = loop.time() + PERIOD_S
        self._timer = loop.call_at(self._due_s, self._look, loop)

    def stop(self) -> None:
        """Harmless if it never started."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now_s = loop.time()
        self.worst_s = max(now_s - self._due_s, self.worst_s * FADES)
        self._told(now_s - self._due_s)
        while self._due_s <= now_s:
            self.seconds.add(now_s - self._due_s)
            self._due_s += PERIOD_S
        self._timer = loop.call_at(self._due_s, self._look, loop)
