"""Bounds on the head of a request, which the server itself has none of: who never finishes it would stay for ever."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_TOO_LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class BoundedProtocol(HttpToolsProtocol):
    """A connection must bring the head of a request within ``patience_s``, from its beginning or the answer before on.

    Between requests it is the server's keep-alive time that counts, until the first byte.
    """

    patience_s: ClassVar[float] = 60.0
    _deadline: asyncio.TimerHandle | None = None
    _begun = False
    _unanswered = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        self._begun = True
        if self._deadline is None and not self._unanswered:
            self._expect_head()
        super().data_received(data)

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
        self._deadline = self.loop.call_later(self.patience_s, self._give_up)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            if self._begun:
                self.transport.write(_TOO_LATE)
            self.transport.close()


def bounded_protocol(seconds: float) -> type[BoundedProtocol]:
    """The class for ``uvicorn.Config(http=…)``."""
    return type("BoundedProtocol", (BoundedProtocol,), {"patience_s": seconds})
