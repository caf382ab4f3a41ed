"""Streaming clients that cost little: HTTP with server-sent events, and Responses over a WebSocket, parsed by hand.

A load generator for thousands of streams spends most of its time here, so there is no task for a stream and no library
between the socket and the text: bytes come in, an ``Ear`` hears text, ends and refusals.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, cast

import msgspec

HELLO = (
    b"GET /v1/responses HTTP/1.1\r\nHost: %b\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: c3RlcHdlbGwtYmVuY2gtMQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
"""Opens a WebSocket to Responses, at the host that is put in."""

_WHOLE_HEAD = b"\r\n\r\n"
_MOST_HEAD = 1 << 16
_TEXT, _CLOSE, _PING, _PONG = 0x81, 0x88, 0x89, 0x8A


class Ear(Protocol):
    """Who asked.  One of ``over``, ``refused`` and ``broken`` ends every answer."""

    def named(self, number: str) -> None:
        """The server's own number of the request."""
        ...

    def heard(self, text: str) -> None: ...
    def over(self, reason: str) -> None: ...
    def refused(self, code: str, retry_after: str) -> None: ...
    def broken(self, why: str) -> None: ...


class _Delta(msgspec.Struct, frozen=True):
    content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    delta: _Delta = _Delta()
    finish_reason: str | None = None


class _Error(msgspec.Struct, frozen=True):
    code: str | None = None
    message: str = ""
    headers: dict[str, str] = {}


class _Chunk(msgspec.Struct, frozen=True):
    choices: list[_Choice] = []
    error: _Error | None = None


class _Metadata(msgspec.Struct, frozen=True):
    stepwell_request: str = ""


class _Whole(msgspec.Struct, frozen=True):
    status: str = ""
    metadata: _Metadata = _Metadata()
    error: _Error | None = None


class _Event(msgspec.Struct, frozen=True):
    type: str = ""
    delta: str = ""
    response: _Whole | None = None
    error: _Error | None = None


_chunk = msgspec.json.Decoder(_Chunk).decode
_event = msgspec.json.Decoder(_Event).decode


class SseCall(asyncio.Protocol):
    """One chat request on a connection of its own, which the server closes."""

    __slots__ = ("_body", "_ear", "_ends", "_head", "_host", "_reason", "_rest", "_text", "transport")

    def __init__(self, host: str, body: bytes, ear: Ear) -> None:
        self._host, self._body, self._ear = host, body, ear
        self._rest = self._text = b""
        self._head: list[str] | None = None
        self._reason = ""
        self._ends = False
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(post(self._host, self._body))

    def data_received(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        if self._head is None:
            head, found, data = data.partition(_WHOLE_HEAD)
            if not found:
                self._rest = self._bounded(head)
                return
            self._begin(head.decode("latin-1").split("\r\n"))
        self._rest = self._chunks(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._ends:
            self._ends = True
            self._finish(exc)

    def close(self) -> None:
        """The client leaves; its ear hears no more."""
        self._ends = True
        self.transport.abort()

    def _begin(self, head: list[str]) -> None:
        self._head = head
        number = self._field("x-stepwell-request")
        if number:
            self._ear.named(number)

    def _field(self, name: str) -> str:
        for line in self._head or []:
            key, _, value = line.partition(":")
            if key.lower() == name:
                return value.strip()
        return ""

    def _bounded(self, head: bytes) -> bytes:
        if len(head) > _MOST_HEAD:
            self.transport.abort()
        return head

    @property
    def _good(self) -> bool:
        return self._head is not None and self._head[0].split(" ")[1:2] == ["200"]

    def _chunks(self, data: bytes) -> bytes:
        """What is in whole chunks of a chunked body; returns what is left.  A refusal has a plain body."""
        if not self._good:
            return data
        start = 0
        while (line := data.find(b"\r\n", start)) >= 0:
            size = int(data[start:line], 16)
            stop = line + 2 + size
            if len(data) < stop + 2:
                break
            self._events(data[line + 2 : stop])
            start = stop + 2
        return data[start:]

    def _events(self, data: bytes) -> None:
        *events, self._text = (self._text + data if self._text else data).split(b"\n\n")
        for event in events:
            if self._ends:
                return
            if event == b"data: [DONE]":
                self._ends = True
                self._ear.over(self._reason)
            elif event.startswith(b"data: "):
                for choice in _chunk(event[6:]).choices:
                    if choice.delta.content:
                        self._ear.heard(choice.delta.content)
                    self._reason = choice.finish_reason or self._reason
            elif not event.startswith(b":"):
                self._ends = True
                self._ear.broken(event.decode("utf-8", "replace")[:300])

    def _finish(self, exc: Exception | None) -> None:
        if self._head is None or self._good:
            self._ear.broken(f"the connection ended ({exc or 'closed'})")
            return
        try:
            error = _chunk(self._rest).error or _Error()
        except msgspec.DecodeError:
            error = _Error()
        self._ear.refused(error.code or self._head[0], self._field("retry-after"))


class SocketCalls(asyncio.Protocol):
    """A WebSocket to Responses, one answer at a time.  ``ready`` is called once it is open."""

    __slots__ = ("_ear", "_host", "_lost", "_open", "_ready", "_rest", "transport")

    def __init__(self, host: str, ready: Callable[[SocketCalls], None], lost: Callable[[str], None]) -> None:
        """``lost`` is told why the socket closed, if nobody waits for an answer then."""
        self._host, self._ready, self._lost = host, ready, lost
        self._open = False
        self._rest = b""
        self._ear: Ear | None = None
        self.transport: asyncio.Transport

    def ask(self, body: bytes, ear: Ear) -> None:
        """Send ``body`` (a ``response.create``); ``ear`` hears the answer."""
        if self.transport.is_closing():
            ear.broken("the socket is closed")
            return
        self._ear = ear
        self.transport.write(frame(_TEXT, body))

    def close(self) -> None:
        """The client leaves; nobody hears any more."""
        self._ear, self._lost = None, _nobody
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(HELLO % self._host.encode())

    def connection_lost(self, exc: Exception | None) -> None:
        why = f"the socket ended ({exc or 'closed'})"
        ear, self._ear = self._ear, None
        if ear is not None:
            ear.broken(why)
        else:
            self._lost(why)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        if not self._open:
            head, found, data = data.partition(_WHOLE_HEAD)
            if not found and len(head) < _MOST_HEAD:
                self._rest = head
                return
            if not head.startswith(b"HTTP/1.1 101"):
                self.transport.abort()
                return
            self._open = True
            self._ready(self)
        start, size = 0, len(data)
        while size - start >= 2:
            kind, length, body = data[start], data[start + 1], start + 2
            if length >= 126:
                wide = 2 if length == 126 else 8
                length, body = int.from_bytes(data[body : body + wide]), body + wide
            if size < body + length:
                break
            start = body + length
            self._message(kind, data[body:start])
        self._rest = data[start:]

    def _message(self, kind: int, body: bytes) -> None:
        if kind == _PING:
            self.transport.write(frame(_PONG, body))
        elif kind == _CLOSE:
            self.transport.close()
        elif kind == _TEXT:
            self._event(_event(body))

    def _event(self, event: _Event) -> None:
        ear = self._ear
        if ear is None:
            return
        kind, whole = event.type, event.response
        if kind == "response.output_text.delta":
            ear.heard(event.delta)
        elif kind == "response.created" and whole is not None:
            ear.named(whole.metadata.stepwell_request)
        elif kind in ("response.completed", "response.incomplete"):
            self._ear = None
            ear.over("stop" if kind == "response.completed" else "length")
        elif kind == "error":
            self._ear = None
            error = event.error or _Error()
            ear.refused(error.code or "", error.headers.get("Retry-After", ""))
        elif kind == "response.failed":
            self._ear = None
            error = (whole and whole.error) or _Error()
            ear.broken(f"{error.code}: {error.message}"[:300])


def post(host: str, body: bytes) -> bytes:
    """A chat request for an event stream, whose connection ends with it."""
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nAccept: text/event-stream\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def frame(kind: int, body: bytes) -> bytes:
    """A client's frame is masked; with zeros, which leave it as it is."""
    size = len(body)
    if size < 126:
        head = bytes((kind, 0x80 | size))
    elif size < 1 << 16:
        head = bytes((kind, 0xFE)) + size.to_bytes(2)
    else:
        head = bytes((kind, 0xFF)) + size.to_bytes(8)
    return head + bytes(4) + body


def _nobody(why: str) -> None:
    """Nobody wants to know."""
