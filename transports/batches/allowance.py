"""How many lines may be in flight: as many as are allowed, and fewer while the engine refuses some.

Additive increase, multiplicative decrease: what a full queue refuses halves the number, what is answered lets it grow
again by one for as many answers as there are in flight (Chiu and Jain, "Analysis of the increase and decrease
algorithms for congestion avoidance in computer networks", 1989).
"""

from __future__ import annotations

from collections import deque

import anyio

from stepwell.core.types import NS_PER_S

CALM_NS = NS_PER_S
"""Refusals that come so close together are one: they are answers to the same fullness."""


class Allowance:
    """Who waits for a place is served in order."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.allowed = float(most)
        self.held = 0
        self._shrunk_ns = -CALM_NS
        self._waiting: deque[anyio.Event] = deque()

    async def take(self) -> None:
        """Wait for a place."""
        if self._waiting or not self._room:
            turn = anyio.Event()
            self._waiting.append(turn)
            try:
                await turn.wait()
            except BaseException:
                if turn.is_set():
                    self.held -= 1
                else:
                    self._waiting.remove(turn)
                self._call()
                raise
        else:
            self.held += 1

    def give_back(self) -> None:
        """A place is free."""
        self.held -= 1
        self._call()

    def refused(self, now_ns: int) -> None:
        """Something was refused for want of room."""
        if now_ns - self._shrunk_ns >= CALM_NS:
            self._shrunk_ns = now_ns
            self.allowed = max(self.allowed / 2, 1.0)

    def answered(self) -> None:
        """Something was not."""
        if self.allowed < self.most:
            self.allowed = min(self.allowed + 1 / self.allowed, float(self.most))
            self._call()

    @property
    def _room(self) -> bool:
        return self.held < int(self.allowed)

    def _call(self) -> None:
        while self._waiting and self._room:
            self.held += 1
            self._waiting.popleft().set()
