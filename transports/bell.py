"""Wakes one waiting task, at most once per turn of the event loop, however often it is rung.

``anyio.Event`` would do, at several times the price: one has to be made for each wait, and it serves any number of
waiters.  A server that wakes hundreds of connections a step pays that for each of them.
"""

from __future__ import annotations

import asyncio


class Bell:
    """Rung any number of times before somebody listens, it is heard once.  One task waits at a time."""

    __slots__ = ("_rung", "_waiter")

    def __init__(self) -> None:
        self._rung = False
        self._waiter: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """From the event loop's own thread."""
        self._rung = True
        if self._waiter is not None:
            if not self._waiter.done():
                self._waiter.set_result(None)
            self._waiter = None

    async def heard(self) -> None:
        """Wait until it was rung since the last call (or has been already)."""
        if not self._rung:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        self._rung = False
