"""Clients that ask for a long answer and then stop reading, for good."""

from __future__ import annotations

import asyncio
import socket
from typing import cast

import msgspec

from stepwell.cli.streams_wire import HELLO, frame, post

ENDLESS = 20_000
"""Tokens that they ask for."""
_RECEIVE_BYTES = 4096


class Stalled(asyncio.Protocol):
    """One of them; the kernel holds as little for it as it may."""

    def __init__(self, host: str, *, over_socket: bool) -> None:
        self._host = host
        self._over_socket = over_socket
        self._transport: asyncio.Transport | None = None

    async def open(self, loop: asyncio.AbstractEventLoop, host: str, port: int) -> None:
        """Ask, and read no more."""
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
        connection.setblocking(False)
        await loop.sock_connect(connection, (host, port))
        await loop.create_connection(lambda: self, sock=connection)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._over_socket:
            self._transport.write(HELLO % self._host.encode())
            return
        messages = [{"role": "user", "content": "go on and on"}]
        asked = {"messages": messages, "max_tokens": ENDLESS, "ignore_eos": True, "stream": True}
        self._transport.write(post(self._host, msgspec.json.encode(asked)))
        self._transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        """A WebSocket is open now."""
        assert self._transport is not None
        asked = {"type": "response.create", "input": "go on and on", "max_output_tokens": ENDLESS, "ignore_eos": True}
        self._transport.write(frame(0x81, msgspec.json.encode({**asked, "store": False})))
        self._transport.pause_reading()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
