"""Straight to the transport: what a stream says in its steady state needs no task, and no layer of the server.

A token that goes the server's whole way costs a switch to the connection's task, and a coroutine or two for each layer
that it passes; that is more than the token itself.  So a connection whose task waits for news is told of them by a
call: if its transport takes what there is to say at once, it is written, and the task sleeps on.  Beginnings, ends,
slow clients and everything odd are the task's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.protocol import State

from stepwell.transports.bell import Bell


class Writer(Protocol):
    """Of one connection whose answer has begun."""

    @property
    def free(self) -> bool:
        """Whether the client keeps up, and is there: what is written now goes to the kernel."""
        ...

    def write(self, data: bytes) -> None:
        """Only while ``free``."""
        ...


class HttpWriter:
    """Chunks of a chunked answer."""

    __slots__ = ("_cycle", "_flow", "_write")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._flow = cycle.flow
        self._write = cycle.transport.write

    @property
    def free(self) -> bool:
        cycle = self._cycle
        over = cycle.disconnected or cycle.response_complete
        return not (over or self._flow.write_paused) and cycle.chunked_encoding is True

    def write(self, data: bytes) -> None:
        """One chunk."""
        self._write(b"%x\r\n%b\r\n" % (len(data), data))


class SocketWriter:
    """Text messages of a WebSocket, one frame each."""

    __slots__ = ("_protocol", "_write")

    def __init__(self, protocol: WebSocketsSansIOProtocol) -> None:
        self._protocol = protocol
        self._write = protocol.transport.write

    @property
    def free(self) -> bool:
        protocol = self._protocol
        over = protocol.disconnected or protocol.close_sent or protocol.transport.is_closing()
        return not over and protocol.conn.state is State.OPEN and protocol.writable.is_set()

    def write(self, data: bytes) -> None:
        """One message."""
        size = len(data)
        if size < 126:
            self._write(b"\x81%c%b" % (size, data))
        elif size < 1 << 16:
            self._write(b"\x81\x7e%b%b" % (size.to_bytes(2), data))
        else:
            self._write(b"\x81\x7f%b%b" % (size.to_bytes(8), data))


def writer_of(send: Callable[..., object]) -> Writer | None:
    """Of the server's own ``send``; None if it is somebody else's, or compresses."""
    server = getattr(send, "__self__", None)
    if isinstance(server, RequestResponseCycle):
        return HttpWriter(server)
    if isinstance(server, WebSocketsSansIOProtocol) and not server.conn.extensions:
        return SocketWriter(server)
    return None


class Outlet:
    """All connections that have something to say, in one turn of the loop."""

    def __init__(self) -> None:
        self._due: list[Callable[[], None]] = []

    def soon(self, say: Callable[[], None]) -> None:
        """Call ``say`` in the next turn; it must not raise."""
        if not self._due:
            asyncio.get_running_loop().call_soon(self._all)
        self._due.append(say)

    def _all(self) -> None:
        due, self._due = self._due, []
        for say in due:
            say()


class Herald:
    """Brings the news of an answer to its connection: by a call while its task waits in ``news``, or by waking it.

    ``say`` says what there is and returns True, or returns False if that is for the task; an exception is the task's.
    """

    __slots__ = ("_bell", "_due", "_error", "_outlet", "_say", "_waits")

    def __init__(self, outlet: Outlet, say: Callable[[], bool]) -> None:
        self._outlet = outlet
        self._say = say
        self._bell = Bell()
        self._due = self._waits = False
        self._error: Exception | None = None

    def tell(self) -> None:
        """There is something new."""
        if self._due:
            return
        if self._waits:
            self._due = True
            self._outlet.soon(self._bring)
        else:
            self._bell.ring()

    def _bring(self) -> None:
        self._due = False
        try:
            said = self._waits and self._say()
        except Exception as error:
            self._error, said = error, False
        if not said:
            self._bell.ring()

    async def news(self) -> None:
        """Wait until there is something for the task to do.  Raises what ``say`` raised."""
        self._waits = True
        try:
            await self._bell.heard()
        finally:
            self._waits = False
        if self._error is not None:
            raise self._error
