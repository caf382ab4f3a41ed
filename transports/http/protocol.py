"""Bounds on the head of a request, which the server itself has none of: who never finishes it would stay for ever."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEAD = 64 << 10
"""Bytes that may come before a head is complete."""

_TOO_LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_TOO_LONG = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class BoundedProtocol(HttpToolsProtocol):
    """A connection must bring the head of a request within ``patience_s``, from its beginning or the answer before on,
    and within ``MOST_HEAD`` bytes.

    Between requests it is the server's keep-alive time that counts, until the first byte.
    """

    patience_s: ClassVar[float] = 60.0
    _deadline: asyncio.TimerHandle | None = None
    _came = 0
    """Bytes since a head was expected."""
    _unanswered = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        if self._deadline is None and not self._unanswered:
            self._expect_head()
        self._came += len(data)
        super().data_received(data)
        if self._deadline is not None and self._came > MOST_HEAD:
            self._give_up(_TOO_LONG)

    def on_headers_complete(self) -> None:
        self._expect_nothing()
        self._unanswered += 1
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        self._unanswered -= 1
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        self._came = 0
        self._deadline = self.loop.call_later(self.patience_s, self._give_up, _TOO_LATE)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self, why: bytes) -> None:
        self._expect_nothing()
        if not self.transport.is_closing():
            if self._came:
                self.transport.write(why)
            self.transport.close()


def bounded_protocol(seconds: float) -> type[BoundedProtocol]:
    """The class for ``uvicorn.Config(http=…)``."""
    return type("BoundedProtocol", (BoundedProtocol,), {"patience_s": seconds})
