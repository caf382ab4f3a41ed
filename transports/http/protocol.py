"""Bounds on what comes outside of requests, and an end to connections that does not take the answer with it.

The server itself has neither: who never finishes a head would stay for ever, and a socket that is closed with something
unread is reset, so that a client which sends a large body never sees that it was refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ClassVar, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MOST_HEAD = 64 << 10
"""Bytes that may come before a head is complete."""

MOST_UNREAD = 64 << 20
"""Bytes of a body that are read after its answer, and dropped."""

LINGER_S = 1.0
"""For a client to read what it was told, where it is cut off in the middle of sending."""

LAST_LINGER_S = 0.25
"""The same, while the server stops and waits for its connections."""

MOST_UNSENT = 1
"""Bytes that wait for the kernel and do not count yet; with more a client is behind, and its time runs."""

_TOO_LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_TOO_LONG = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class BoundedProtocol(HttpToolsProtocol):
    """A connection is inside a request, from the end of its head to the end of its body, or outside.

    Outside, ``MOST_HEAD`` bytes may come, whatever is still unanswered, and a head that has begun must be complete
    within ``patience_s``; so must the first one.  Between requests it is the server's keep-alive time that counts,
    until the first byte.  Inside, what comes is the answer's to read and to bound, until the answer is complete: then
    the rest, which nobody will read, is dropped for ``patience_s`` and ``MOST_UNREAD`` bytes at most.
    """

    patience_s: ClassVar[float] = 60.0
    _inside = False
    _closes = False
    """When the request is over."""
    _ending = False
    """The server stops."""
    _deaf = False
    """Nothing more is understood: the client was told, and may read it."""
    _came = 0
    """Bytes since the last change from inside to outside, or back, or since the answer."""
    _deadline: asyncio.TimerHandle | None = None
    left: Callable[[], None] | None = None
    """Called if the connection is lost; whoever answers sets it."""
    lost = False
    """It was."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=MOST_UNSENT)  # a WebSocket's too, which takes this transport over
        self._hurry()

    def data_received(self, data: bytes) -> None:
        self._came += len(data)
        if self._deaf:
            if self._came > MOST_UNREAD:
                self.flow.pause_reading()
            return
        if not self._inside and not self._answering:
            self._hurry()
        super().data_received(data)
        if not self._inside and self._came > MOST_HEAD:
            self._give_up(_TOO_LONG)
        elif self._unread and self._came > MOST_UNREAD:
            self._give_up(b"")

    def connection_lost(self, exc: Exception | None) -> None:
        self._hurry_no_more()
        self.lost = True
        super().connection_lost(exc)
        if self.left is not None:
            left, self.left = self.left, None
            left()
        self.cycle = None  # type: ignore[assignment]  # which knows this connection

    def handle_websocket_upgrade(self) -> None:
        self._hurry_no_more()  # it has a life of its own
        super().handle_websocket_upgrade()

    def shutdown(self) -> None:
        self._ending = True
        super().shutdown()

    # ------------------------------------------------------------------------------------------- requests

    def on_message_begin(self) -> None:
        self._hurry()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._cross(inside=True)
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before:  # and not a WebSocket
            self.cycle.transport = cast(asyncio.Transport, AnswersTransport(self))

    def on_message_complete(self) -> None:
        self._cross(inside=False)
        super().on_message_complete()
        if self._closes:
            self.transport.close()
        elif not self._answering:  # the keep-alive time was over with the first byte after the answer
            self._hurry()

    def on_response_complete(self) -> None:
        if self._unread:
            self._drop_the_rest()
        super().on_response_complete()

    def _cross(self, *, inside: bool) -> None:
        self._inside, self._came = inside, 0
        self._hurry_no_more()

    @property
    def _last(self) -> RequestResponseCycle | None:
        """The last request with a complete head, and its answer."""
        return self.cycle

    @property
    def _answering(self) -> bool:
        """Answers come in order, so that it is the last request's that counts."""
        return self._last is not None and not self._last.response_complete

    @property
    def _unread(self) -> bool:
        return self._inside and self._last is not None and not self._answering

    def close_for(self, answer: AnswersTransport) -> None:
        """The answer wants it closed; not before all of its request is here."""
        if self._inside and self._last is not None and cast(object, self._last.transport) is answer:
            self._closes = True
            if self._ending:
                self._cut_off(LAST_LINGER_S)
            else:
                self._drop_the_rest()
        else:
            self.transport.close()

    def _drop_the_rest(self) -> None:
        if self._deadline is None:
            self._came = 0
            self._hurry()

    # ------------------------------------------------------------------------------------------- patience

    def _hurry(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.patience_s, self._late)

    def _hurry_no_more(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _late(self) -> None:
        self._hurry_no_more()
        if self.flow.read_paused and not self._unread:  # it is we who do not read
            self._hurry()
        else:
            self._give_up(b"" if self._inside else _TOO_LATE)

    def _give_up(self, why: bytes) -> None:
        self._hurry_no_more()
        if self.transport.is_closing() or self._deaf:
            return
        if self._answering or not self._came:
            self.transport.close()
            return
        self.transport.write(why)
        self._cut_off(LINGER_S)

    def _cut_off(self, linger_s: float) -> None:
        if self.transport.can_write_eof():  # TLS cannot say only half of it
            self.transport.write_eof()
        self._deaf = True
        self.loop.call_later(linger_s, self.transport.close)


class AnswersTransport:
    """The transport as the answer to one request sees it: when to close is for the protocol to say."""

    def __init__(self, protocol: BoundedProtocol) -> None:
        self.write = protocol.transport.write
        self.is_closing = protocol.transport.is_closing
        self.protocol = protocol

    def close(self) -> None:
        """When it wants, which is not when it is done."""
        self.protocol.close_for(self)


def bounded_protocol(seconds: float) -> type[BoundedProtocol]:
    """The class for ``uvicorn.Config(http=…)``."""
    return type("BoundedProtocol", (BoundedProtocol,), {"patience_s": seconds})
