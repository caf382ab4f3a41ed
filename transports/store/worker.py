"""A thread that owns a connection, and does what it is handed in one transaction for all who wait."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

import structlog

from stepwell.core.errors import CapacityError
from stepwell.transports.stopping import shutting_down

log = structlog.get_logger("stepwell.store")

T = TypeVar("T")
Work = Callable[[sqlite3.Connection], T]
"""SQL and nothing else: what it did may be undone, and it called again."""

MOST_WAITING = 16_384
"""Pieces of work that wait: with a disk that hangs, memory must not fill with what nobody can write."""
MOST = 256
"""Pieces of work in one transaction."""


class _Task:
    """One piece of work, and who waits for it."""

    __slots__ = ("error", "future", "loop", "result", "work")

    def __init__(self, work: Work[Any], loop: asyncio.AbstractEventLoop) -> None:
        self.work = work
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.result: Any = None
        self.error: BaseException | None = None

    def deliver(self) -> None:
        """On the loop."""
        if self.future.done():  # who waited has left
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class Worker:
    """Work is done in the order in which it was handed in, whether or not anybody still waits for it.

    While one transaction is being committed, what comes goes into the next: so a commit is never waited for longer than
    the one before it takes, and many that come at once share the price of one.
    """

    def __init__(self, name: str, connection: sqlite3.Connection, begin: str = "BEGIN") -> None:
        self._connection = connection
        self._begin = begin
        self._queue: SimpleQueue[_Task | None] = SimpleQueue()
        self._closed = False
        self._thread = Thread(target=self._run, name=f"stepwell-store-{name}", daemon=True)
        self._thread.start()

    async def __call__(self, work: Work[T]) -> T:
        """What ``work`` gives or raises, committed.  Raises ``CapacityError`` if there is no room or the disk fails."""
        result: T = await self.post(work)
        return result

    def post(self, work: Work[T]) -> asyncio.Future[T]:
        """Hand ``work`` in; whoever does not wait looks at the future's exception all the same.

        Raises ``CapacityError`` while too much waits, or if nothing is taken any more.
        """
        if self._closed:
            raise shutting_down()
        if self._queue.qsize() >= MOST_WAITING:
            raise CapacityError("the store does not keep up with what is to be written", code="store_busy")
        task = _Task(work, asyncio.get_running_loop())
        self._queue.put(task)
        return task.future

    def close(self) -> None:
        """Nothing new is taken; waits until what was handed in is done."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            self._thread.join()

    # ------------------------------------------------------------------------------------------- in the thread

    def _run(self) -> None:
        open_ = True
        while open_:
            tasks = [self._queue.get()]
            while len(tasks) < MOST and not self._queue.empty():
                tasks.append(self._queue.get())
            group = [task for task in tasks if task is not None]
            open_ = len(group) == len(tasks)
            if group:
                self._do(group)
        self._connection.close()

    def _do(self, group: Sequence[_Task]) -> None:
        """All of them in one transaction; if one of them fails, each in one of its own."""
        if not self._try(group) and len(group) > 1:
            for task in group:
                self._try([task])
        loops = {id(task.loop): task.loop for task in group}
        for loop in loops.values():
            mine = [task for task in group if task.loop is loop]
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits any more
                loop.call_soon_threadsafe(_deliver, mine)

    def _try(self, group: Sequence[_Task]) -> bool:
        connection = self._connection
        try:
            connection.execute(self._begin)
            for task in group:
                task.error = None
                task.result = task.work(connection)
            connection.execute("COMMIT")
        except Exception as error:
            if connection.in_transaction:  # SQLite has undone it already if there was no room
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            for task in group:
                task.error = _told(error)
            return False
        return True


def _deliver(tasks: Sequence[_Task]) -> None:
    for task in tasks:
        task.deliver()


def _told(error: Exception) -> Exception:
    """What the database's own error is to whoever asked."""
    if not isinstance(error, sqlite3.Error) or isinstance(error, sqlite3.IntegrityError | sqlite3.ProgrammingError):
        return error
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
        return CapacityError("the store is full: delete files that are not needed", code="store_full")
    log.error("the store cannot be used", reason=str(error))
    return CapacityError(f"the store cannot be used: {error}", code="store_failed")
