"""The end of serving, for whatever is in progress: it is told, has a moment to say so to its client, and is cut off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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

    def set(self) -> None:
        """From the event loop.  Harmless the second time."""
        if self._event.is_set():
            return
        self._event.set()
        now = anyio.current_time()
        for scope, grace_s in self._scopes.items():
            scope.deadline = min(scope.deadline, now + grace_s)

    def is_set(self) -> bool:
        return self._event.is_set()

    async def wait(self) -> None:
        await self._event.wait()

    @contextmanager
    def ends(self, scope: anyio.CancelScope, grace_s: float) -> Iterator[None]:
        """Inside, ``scope`` is cancelled ``grace_s`` after serving ends."""
        if self.is_set():
            scope.deadline = min(scope.deadline, anyio.current_time() + grace_s)
        self._scopes[scope] = grace_s
        try:
            yield
        finally:
            del self._scopes[scope]

    @contextmanager
    def given_up(self) -> Iterator[None]:
        """What is inside is given up when serving ends: raises ``CapacityError``."""
        with anyio.CancelScope() as scope, self.ends(scope, 0.0):
            yield
        if scope.cancelled_caught:
            raise shutting_down()
