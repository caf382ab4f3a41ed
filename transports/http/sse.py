"""Server-sent events, framed by hand: one ``data:`` line of JSON and a blank line each, LF only.

An event stream watches three things at once: news of the answer, the client (who may leave), and the time (a comment
when nothing was said for a while).  It never holds the engine up.  What a slow client has not taken grows together into
larger pieces; a client that takes nothing at all, or falls too far behind, is dropped.

A chunk goes out for every stream and every step, so its way is short: text goes straight to the transport if that takes
it at once (``transports.straight``), and past the layers of the application that look at heads only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from stepwell.core.errors import CapacityError
from stepwell.transports.errors import Refusal
from stepwell.transports.generation import Generation
from stepwell.transports.herald import Herald
from stepwell.transports.http.leaving import Leaving
from stepwell.transports.service import Service
from stepwell.transports.stopping import GOODBYE_S, shutting_down
from stepwell.transports.straight import DIRECT, Writer, cut_off, writer_of
from stepwell.transports.watch import Watch

HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
PING = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode


def data(value: object) -> bytes:
    """One event.  JSON has no raw line breaks, so that it is one line whatever the text holds."""
    return b"data: " + _encode(value) + b"\n\n"


def error(refusal: Refusal) -> bytes:
    """A failure in the middle: some clients look for the event's name, others for the data, and all for the end."""
    return b"event: error\ndata: " + refusal.body + b"\n\n" + DONE


class Dialect(msgspec.Struct, frozen=True):
    """What streams of one protocol say beside the answer itself."""

    ping: bytes
    """Nothing new, and still there."""
    done: bytes
    """After the last event of an answer that came to its end."""
    error: Callable[[Refusal], bytes]
    """The last words of one that failed."""


OPENAI = Dialect(PING, DONE, error)


def only_head(headers: Mapping[str, str]) -> Response:
    """To HEAD: what a stream would begin with.  There is no stream behind it that somebody could wait for."""
    answer = Response(headers={**HEADERS, **headers}, media_type="text/event-stream")
    answer.raw_headers = [(name, value) for name, value in answer.raw_headers if name != b"content-length"]
    return answer


class DirectSend:
    """Goes around the whole application: lets an event stream, or a socket, send its text without any layer between it
    and the server.

    Its head goes through all of them, as everything else does.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app({**scope, DIRECT: send}, receive, send)


Events = Callable[[Generation], bytes]
"""What there is to say now of an answer, framed; called again whenever there is news."""


class EventStream(Response):
    """Streams a generation and closes it, however that ends."""

    def __init__(
        self,
        service: Service,
        generation: Generation,
        events: Events,
        closing: Events,
        headers: Mapping[str, str],
        prepare: Callable[[Generation], Awaitable[None]] | None = None,
        dialect: Dialect = OPENAI,
    ) -> None:
        """``prepare`` is awaited before ``events`` is called, for what would hold others up."""
        super().__init__(headers={**HEADERS, **headers}, media_type="text/event-stream")
        # Without a length: it is not known, and the connection says where the end is.
        self.raw_headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]
        self._service = service
        self._generation = generation
        self._events = events
        self._closing = closing
        self._prepare = prepare
        self._dialect = dialect
        self._over = False
        self._silent = False
        self._writer: Writer | None = None
        self._watch: Watch
        self._scope: anyio.CancelScope

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, limits, generation = self._service, self._service.limits, self._generation
        watch = Watch(
            service.clock.now_ns, limits.send_timeout_s, self._drop, ping_s=limits.ping_s, silent=self._be_silent
        )
        try:
            with service.watching(watch) as self._watch, anyio.CancelScope() as self._scope:
                generation.most_untaken, generation.overflow = limits.buffer_kib << 10, self._drop
                with service.stopping.ends(self._scope, GOODBYE_S):
                    async with Leaving(scope, receive, self._leave):
                        await self._stream(send, scope.get(DIRECT, send))
        except OSError:
            service.metrics.count("disconnected")
        finally:
            generation.close()
            del self._watch  # which knows this answer, as the generation does
        cut_off(scope)

    def _drop(self) -> None:
        self._service.metrics.count("slow_client")
        self._scope.cancel()

    def _be_silent(self) -> None:
        self._silent = True
        self._generation.tell()

    def _leave(self) -> None:
        if not self._over:
            self._service.metrics.count("disconnected")
            self._scope.cancel()

    async def _stream(self, send_head: Send, send: Send) -> None:
        watch, generation = self._watch, self._generation
        herald = Herald(self._service.outlet, self._say)
        generation.rings(herald.ring)
        self._writer = writer_of(send) if self._prepare is None else None
        watch.sending()
        await send_head({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        watch.sent()
        while not self._over:
            if self._prepare is not None:
                await self._prepare(generation)
            body = self._next()
            if body:
                watch.sending()
                await send({"type": "http.response.body", "body": body, "more_body": not self._over})
                watch.sent()
            if not self._over:
                await herald.heard()

    def _say(self) -> bool:
        """Straight to the transport, if it is nothing but text for a client that keeps up."""
        writer, generation = self._writer, self._generation
        if writer is None or self._silent or generation.notice or generation.some_over or not writer.free:
            return False
        body = self._events(generation)
        if body:
            writer.write((body,))
            self._watch.wrote()
        return True

    def _next(self) -> bytes:
        """What there is to say; sets ``_over`` if it is the last."""
        generation = self._generation
        failed, ended = generation.error, generation.ended
        body = self._events(generation)
        if failed is not None:
            self._over = True
            generation.cancel()
            return body + self._dialect.error(self._service.refusal(failed))
        if ended:
            self._over = True
            return body + self._closing(generation) + self._dialect.done
        if generation.notice:
            body += f": {generation.notice}\n\n".encode()
            generation.notice, self._silent = "", False
        if self._silent:
            self._silent = False
            return body or self._dialect.ping
        return body


async def unless_gone(request: Request, service: Service, work: Callable[[], Any]) -> Any:
    """What ``work`` gives, unless the client leaves first: then work is cancelled, and ``ClientGone`` raised.

    If the server stops first, it is cancelled too, and ``CapacityError`` raised.  The whole body must have been read.
    """
    gone = False
    with anyio.CancelScope() as waiting, service.stopping.ends(waiting, 0.0):

        def left() -> None:
            nonlocal gone
            gone = True
            service.metrics.count("disconnected")
            waiting.cancel()

        async with Leaving(request.scope, request.receive, left):
            return await work()
    if gone:
        raise ClientGone
    raise shutting_down()


class ClientGone(CapacityError):
    """The client left before there was anything to tell it (499, which is never sent)."""

    def __init__(self) -> None:
        super().__init__("the client is gone", code="client_gone")
