"""Clocks of the live shell: the real one, and a virtual one that makes a whole event loop run in no time.

A virtual clock is an asyncio event loop whose time is a counter of nanoseconds: when every task waits, and only then,
time jumps to the next timer.  So "everybody else is waiting" is not guessed but known, which is what lets the engine
batch the events of one instant exactly as the simulator does.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Awaitable, Callable, Mapping
from heapq import heappop, heappush
from typing import Any, Protocol, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from stepwell.core.types import NS_PER_S

T = TypeVar("T")


class Clock(Protocol):
    """Time for the engine, in integer nanoseconds that never run backwards."""

    def now_ns(self) -> int: ...
    async def sleep_until(self, at_ns: int) -> None:
        """Return at ``at_ns``, never before it, or at once if that is past."""
        ...

    async def settle(self) -> None:
        """Let everything else that happens at this instant happen first, as far as the clock can know it."""
        ...


class RealClock:
    """The machine's monotonic clock, counted from its creation."""

    def __init__(self) -> None:
        self._start_ns = time.monotonic_ns()

    def now_ns(self) -> int:
        return time.monotonic_ns() - self._start_ns

    async def sleep_until(self, at_ns: int) -> None:
        if at_ns <= self.now_ns():
            await checkpoint()
        while (delay_ns := at_ns - self.now_ns()) > 0:
            await anyio.sleep(delay_ns / NS_PER_S)

    async def settle(self) -> None:
        """Real instants are as long as it takes to look: what is there now is the batch."""


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting for files, moves time: first to whoever wants to settle, then to the next sleeper.

    Only the loop itself has timers in seconds (``anyio.sleep``, ``asyncio.timeout``); it gives the delay of its next
    one as ``timeout``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0
        self._settling: list[asyncio.Future[None]] = []
        self._sleeping: list[tuple[int, int, asyncio.Future[None]]] = []
        self._sleepers = 0

    def settled(self, future: asyncio.Future[None]) -> None:
        """Resolve ``future`` once nothing else can happen at this instant."""
        self._settling.append(future)

    def reached(self, at_ns: int, future: asyncio.Future[None]) -> None:
        """Resolve ``future`` at ``at_ns``; those of one instant in the order in which they were handed in."""
        self._sleepers += 1
        heappush(self._sleeping, (at_ns, self._sleepers, future))

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if self._settling:
            settling, self._settling = self._settling, []
            for future in settling:
                _resolve(future)
            return []
        at_ns = self._next_ns()
        if timeout is not None:
            loop_ns = self.now_ns + max(round(timeout * NS_PER_S), 1)
            at_ns = loop_ns if at_ns is None else min(at_ns, loop_ns)
        if at_ns is None:
            # Only something outside the loop (a thread) can go on from here.
            return super().select(None)
        self.now_ns = at_ns
        sleeping = self._sleeping
        while sleeping and sleeping[0][0] <= at_ns:
            _resolve(heappop(sleeping)[2])
        return []

    def _next_ns(self) -> int | None:
        """When the next sleeper wakes; those who were cancelled do not hold time up."""
        sleeping = self._sleeping
        while sleeping and sleeping[0][2].done():
            heappop(sleeping)
        return sleeping[0][0] if sleeping else None


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time.  ``time()`` is in seconds, as asyncio wants it; the nanoseconds are exact."""

    def __init__(self) -> None:
        self.jumping = _JumpingSelector()
        super().__init__(self.jumping)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self.jumping.now_ns / NS_PER_S


class VirtualClock:
    """The time of the virtual loop it is used in (see ``run_virtual``).

    Time does not wait for threads: while a sleeper is left, the result of one comes whenever it comes.
    """

    def _loop(self) -> VirtualLoop:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop), "a VirtualClock works inside run_virtual only"
        return loop

    def now_ns(self) -> int:
        return self._loop().jumping.now_ns

    async def sleep_until(self, at_ns: int) -> None:
        loop = self._loop()
        if at_ns <= loop.jumping.now_ns:
            await checkpoint()
            return
        future = loop.create_future()
        loop.jumping.reached(at_ns, future)
        await future

    async def settle(self) -> None:
        loop = self._loop()
        future = loop.create_future()
        loop.jumping.settled(future)
        await future


def run_virtual(function: Callable[..., Awaitable[T]], *args: object) -> T:
    """Run an async function to its end under virtual time (``VirtualClock`` in it), on asyncio through anyio."""
    options: Mapping[str, Any] = {"loop_factory": VirtualLoop}
    return anyio.run(function, *args, backend="asyncio", backend_options=dict(options))
