"""Straight to the transport: chunks and messages without a layer between an answer and the kernel (see ``herald``).

What uvicorn would write is written here in the same bytes, and only while nothing of its own waits to be written.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.protocol import State

from stepwell.transports.http.protocol import AnswersTransport


class Writer(Protocol):
    """Of one connection whose answer has begun."""

    @property
    def free(self) -> bool:
        """Whether the client keeps up, and is there: what is written now goes to the kernel."""
        ...

    def write(self, parts: Sequence[bytes]) -> None:
        """Each part whole, all of them in one piece; only while ``free``."""
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

    def write(self, parts: Sequence[bytes]) -> None:
        """One chunk."""
        data = parts[0] if len(parts) == 1 else b"".join(parts)
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

    def write(self, parts: Sequence[bytes]) -> None:
        """A message each."""
        self._write(_frame(parts[0]) if len(parts) == 1 else b"".join(map(_frame, parts)))


def _frame(data: bytes) -> bytes:
    size = len(data)
    if size < 126:
        return b"\x81%c%b" % (size, data)
    if size < 1 << 16:
        return b"\x81\x7e%b%b" % (size.to_bytes(2), data)
    return b"\x81\x7f%b%b" % (size.to_bytes(8), data)


DIRECT = "stepwell.send"
"""Where a connection's scope has the server's own ``send``."""
_AT_ONCE = struct.pack("ii", 1, 0)


def is_whole(scope: Scope) -> bool:
    """Whether all of a request's body is here: whoever reads it waits for nobody."""
    cycle = getattr(scope.get(DIRECT), "__self__", None)
    return isinstance(cycle, RequestResponseCycle) and not cycle.more_body


def cut_off(scope: Scope) -> None:
    """End the connection of a client that was given up in the middle of its answer: what it does not take is not kept.

    Nothing happens to an answer that is complete, or if the server is somebody else's, which closes it as it does.
    """
    server = getattr(scope.get(DIRECT), "__self__", None)
    if isinstance(server, RequestResponseCycle):
        if server.response_complete or server.disconnected:
            return
        server.disconnected = True  # else it would be logged as a fault of the application
    elif not isinstance(server, WebSocketsSansIOProtocol):
        return
    transport = server.transport
    if isinstance(transport, AnswersTransport):
        transport = transport.protocol.transport
    if not transport.get_write_buffer_size():
        transport.close()
        return
    with suppress(OSError):  # else the kernel would keep what it has, too, until the client takes it
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
    transport.abort()


def writer_of(send: Callable[..., object] | None) -> Writer | None:
    """Of the server's own ``send``; None if it is somebody else's, or compresses."""
    server = getattr(send, "__self__", None)
    if isinstance(server, RequestResponseCycle):
        return HttpWriter(server)
    if isinstance(server, WebSocketsSansIOProtocol) and not server.conn.extensions:
        return SocketWriter(server)
    return None
