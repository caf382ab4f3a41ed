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
from typing import Any, Protocol, TypeVar

import anyio

T = TypeVar("T")


class Clock(Protocol):
    """Time for the engine, in integer nanoseconds that never run backwards."""

    def now_ns(self) -> int: ...
    async def sleep_until(self, at_ns: int) -> None:
        """Return at ``at_ns`` or at once if that is past."""
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
        delay_ns = at_ns - self.now_ns()
        await anyio.sleep(max(delay_ns, 0) / 1e9)

    async def settle(self) -> None:
        """Real instants are as long as it takes to look: what is there now is the batch."""


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting for files, moves the loop's time: first to whoever wants to settle, then to the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0
        self.settling: list[asyncio.Future[None]] = []

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is not None and timeout <= 0:
            return super().select(0)
        ready = super().select(0)
        if ready:
            return ready
        if self.settling:
            waiting, self.settling = self.settling, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)
            return []
        if timeout is None:
            # Only something outside the loop (a thread) can go on from here.
            return super().select(None)
        self.now_ns += round(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that counts nanoseconds; exact below 2**53 ns (104 days)."""

    def __init__(self) -> None:
        self.jumping = _JumpingSelector()
        super().__init__(self.jumping)
        self._clock_resolution = 0.5

    def time(self) -> float:
        return float(self.jumping.now_ns)


class VirtualClock:
    """The time of the virtual loop it is used in (see ``run_virtual``)."""

    def _loop(self) -> VirtualLoop:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        return loop

    def now_ns(self) -> int:
        return self._loop().jumping.now_ns

    async def sleep_until(self, at_ns: int) -> None:
        loop = self._loop()
        if at_ns <= loop.jumping.now_ns:
            await anyio.lowlevel.checkpoint()
            return
        reached = loop.create_future()

        def wake() -> None:
            if not reached.done():
                reached.set_result(None)

        timer = loop.call_at(float(at_ns), wake)
        try:
            await reached
        finally:
            timer.cancel()

    async def settle(self) -> None:
        loop = self._loop()
        settled = loop.create_future()
        loop.jumping.settling.append(settled)
        await settled


def run_virtual(function: Callable[..., Awaitable[T]], *args: object) -> T:
    """Run an async function to its end under virtual time (``VirtualClock`` in it), on asyncio through anyio."""
    options: Mapping[str, Any] = {"loop_factory": VirtualLoop}
    return anyio.run(function, *args, backend="asyncio", backend_options=dict(options))
