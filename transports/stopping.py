"""The end of serving, for whatever is in progress: it is told, has a moment to say so to its client, and is cut off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType

import anyio

from stepwell.core.errors import CapacityError

GOODBYE_S = 1.0
"""To write the last words to a client that reads slowly; who takes longer is cut off."""


def shutting_down() -> CapacityError:
    """What everybody is told."""
    return CapacityError("the server is shutting down", code="shutting_down")


class Stopping:
    """An event, and the scopes that it ends."""

    def __init__(self) -> None:
        self._event = anyio.Event()
        self._scopes: dict[anyio.CancelScope, float] = {}
        self._calls: dict[Callable[[], None], None] = {}

    def set(self) -> None:
        """From the event loop.  Harmless the second time."""
        if self._event.is_set():
            return
        self._event.set()
        now = anyio.current_time()
        for scope, grace_s in self._scopes.items():
            scope.deadline = min(scope.deadline, now + grace_s)
        for call in list(self._calls):
            call()

    def is_set(self) -> bool:
        return self._event.is_set()

    async def wait(self) -> None:
        await self._event.wait()

    def ends(self, scope: anyio.CancelScope, grace_s: float) -> AbstractContextManager[None]:
        """Inside, ``scope`` is cancelled ``grace_s`` after serving ends."""
        return _Ends(self, scope, grace_s)

    def enter(self, scope: anyio.CancelScope, grace_s: float) -> None:
        """From here on it is, until ``leave``."""
        if self.is_set():
            scope.deadline = min(scope.deadline, anyio.current_time() + grace_s)
        self._scopes[scope] = grace_s

    def leave(self, scope: anyio.CancelScope) -> None:
        """And no longer."""
        del self._scopes[scope]

    @contextmanager
    def tells(self, call: Callable[[], None]) -> Iterator[None]:
        """Inside, ``call`` is called once when serving ends, or at once if it has."""
        if self.is_set():
            call()
        self._calls[call] = None
        try:
            yield
        finally:
            del self._calls[call]

    @contextmanager
    def given_up(self) -> Iterator[None]:
        """What is inside is given up when serving ends: raises ``CapacityError``."""
        with anyio.CancelScope() as scope, self.ends(scope, 0.0):
            yield
        if scope.cancelled_caught:
            raise shutting_down()


class _Ends(AbstractContextManager[None]):
    """As a class: one is made for every request, and a generator costs several times as much."""

    __slots__ = ("_grace_s", "_scope", "_stopping")

    def __init__(self, stopping: Stopping, scope: anyio.CancelScope, grace_s: float) -> None:
        self._stopping, self._scope, self._grace_s = stopping, scope, grace_s

    def __enter__(self) -> None:
        self._stopping.enter(self._scope, self._grace_s)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stopping.leave(self._scope)
