"""Work that would hold every stream up (tokenising, templates) goes to a few threads of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import anyio

from stepwell.transports.stopping import shutting_down

T = TypeVar("T")


class Aside:
    """At most so many pieces of work at once; who waits for a thread waits here, and may leave.

    Who leaves while the work is done leaves it to its end, and the thread counts until then: clients that come and go
    make no more threads than those that stay.
    """

    def __init__(self, threads: int, short: int = 0) -> None:
        """``short``: bytes that are not worth a thread."""
        self._short = short
        self._room = anyio.Semaphore(threads)
        self._threads = ThreadPoolExecutor(threads, "stepwell-aside")
        self._closed = False

    async def __call__(self, work: Callable[..., T], *arguments: Any) -> T:
        """What ``work`` gives or raises."""
        await self._room.acquire()
        if self._closed:
            self._room.release()
            raise shutting_down()
        loop = asyncio.get_running_loop()
        future = self._threads.submit(work, *arguments)

        def done(_: Future[T]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits any more
                loop.call_soon_threadsafe(self._room.release)

        future.add_done_callback(done)
        return await asyncio.wrap_future(future)

    async def unless_short(self, size: int, work: Callable[[], T]) -> T:
        """What ``work`` on so many bytes gives: at once if they are few."""
        return work() if size <= self._short else await self(work)

    def close(self) -> None:
        """Nothing more is begun; what is being done is waited for by nobody."""
        self._closed = True
        self._threads.shutdown(wait=False)
