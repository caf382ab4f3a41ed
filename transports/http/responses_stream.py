"""The events of a response as server-sent events: ``event:`` and ``data:``, LF only, until the one that ends it.

As in ``sse``: one task sends, another hears whether the client leaves, and a clock says when to send a comment or to
give the client up.  The response itself does not depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping

import anyio
import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stepwell.core.errors import StepwellError
from stepwell.transports.http.sse import HEADERS, PING
from stepwell.transports.responses.live import Reader
from stepwell.transports.service import Service
from stepwell.transports.stopping import GOODBYE_S
from stepwell.transports.straight import DIRECT, Writer, cut_off, writer_of
from stepwell.transports.watch import Watch

PIECE = 64 << 10
"""Bytes that are sent at once, about."""


class ResponseStream(Response):
    """Reads a response to its end, or until its client leaves."""

    def __init__(self, service: Service, reader: Reader, headers: Mapping[str, str]) -> None:
        super().__init__(headers={**HEADERS, **headers}, media_type="text/event-stream")
        self.raw_headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]
        self._service = service
        self._reader = reader
        self._over = self._silent = False
        self._writer: Writer | None = None
        self._watch: Watch
        self._scope: anyio.CancelScope

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, limits = self._service, self._service.limits
        watch = Watch(
            service.clock.now_ns, limits.send_timeout_s, self._drop, ping_s=limits.ping_s, silent=self._be_silent
        )
        try:
            with service.watching(watch) as self._watch:
                async with anyio.create_task_group() as tasks:
                    self._scope = tasks.cancel_scope
                    self._reader.dropped_by(self._drop, limits.buffer_kib << 10)
                    tasks.start_soon(self._stream, send, scope.get(DIRECT, send))
                    with service.stopping.ends(self._scope, GOODBYE_S):
                        await self._watch_client(receive)
        except* OSError:
            service.metrics.count("disconnected")
        finally:
            self._reader.leave()
        cut_off(scope)

    def _drop(self) -> None:
        self._service.metrics.count("slow_client")
        self._scope.cancel()

    def _be_silent(self) -> None:
        self._silent = True
        self._reader.ring()

    async def _watch_client(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        if not self._over:
            self._service.metrics.count("disconnected")
        self._scope.cancel()

    async def _stream(self, send_head: Send, send: Send) -> None:
        watch = self._watch
        self._writer = writer_of(send)
        self._reader.straight(self._service.outlet, self._say)
        watch.sending()
        await send_head({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        watch.sent()
        while not self._over:
            body = self._next()
            if body or self._over:
                watch.sending()
                await send({"type": "http.response.body", "body": body, "more_body": not self._over})
                watch.sent()
            else:
                await self._reader.news()
        self._scope.cancel()

    def _say(self) -> bool:
        """Straight to the transport, if it takes it at once; that events are gone is for the task to say."""
        writer = self._writer
        if writer is None or self._silent or self._reader.ending or not writer.free:
            return False
        try:
            parts = [b"event: %b\ndata: %b\n\n" % (kind.encode(), data) for kind, data in self._reader.events()]
        except StepwellError:
            return False
        if parts:
            writer.write(parts)
            self._watch.wrote()
        return True

    def _next(self) -> bytes:
        """What there is to say; sets ``_over`` if it is the last."""
        parts: list[bytes] = []
        size = 0
        try:
            for kind, data in self._reader.events():
                parts.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), data))
                size += len(data)
                if size > PIECE:
                    break
        except StepwellError as error:
            self._over = True
            return b"".join(parts) + self._error(error)
        self._over = self._reader.over
        if not parts and self._silent:
            parts.append(PING)
        self._silent = False
        return b"".join(parts)

    def _error(self, error: StepwellError) -> bytes:
        """The event of OpenAI's SDK, and the object that other clients look for."""
        refusal = self._service.refusal(error)
        told = {"type": "error", **refusal.error, "error": refusal.error}
        told["type"] = "error"
        return b"event: error\ndata: " + msgspec.json.encode(told) + b"\n\n"
