"""Hears when a client leaves, while something is done for it.

The server that ours runs in says so by a call.  Others only tell whoever waits for a message, which takes a task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from starlette.types import Receive, Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from stepwell.transports.http.protocol import AnswersTransport, BoundedProtocol
from stepwell.transports.straight import DIRECT

STAYS = "stepwell.stays"
"""A scope that holds this is of a client in this process, which never leaves: nobody needs to wait for it."""


class Leaving:
    """Inside, ``left`` is called once if the client leaves.  The whole body must have been read."""

    def __init__(self, scope: Scope, receive: Receive, left: Callable[[], None]) -> None:
        self._protocol = _protocol_of(scope)
        self._stays = STAYS in scope
        self._receive = receive
        self._left = left
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        if self._stays:
            return
        if self._protocol is None:
            self._task = asyncio.ensure_future(self._wait())
        elif self._protocol.lost:
            self._left()
        else:
            self._protocol.left = self._left

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._protocol is not None:
            self._protocol.left = None
        if self._task is not None:
            self._task.cancel()

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._left()


def _protocol_of(scope: Scope) -> BoundedProtocol | None:
    cycle = getattr(scope.get(DIRECT), "__self__", None)
    transport: object = cycle.transport if isinstance(cycle, RequestResponseCycle) else None
    return transport.protocol if isinstance(transport, AnswersTransport) else None
