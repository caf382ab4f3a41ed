"""Server-sent events, framed by hand: one ``data:`` line of JSON and a blank line each, LF only.

An event stream watches three things at once: news of the answer, the client (who may leave), and the time (a comment
when nothing was said for a while).  It never holds the engine up.  What a slow client has not taken grows together into
larger pieces; a client that takes nothing at all, or falls too far behind, is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from stepwell.core.errors import CapacityError
from stepwell.transports.errors import Refusal
from stepwell.transports.generation import Generation
from stepwell.transports.service import Service

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


Events = Callable[[Generation], Iterator[object]]
"""What there is to say now of an answer, as JSON-like objects; called again whenever there is news."""


class EventStream(Response):
    """Streams a generation and closes it, however that ends."""

    def __init__(
        self,
        service: Service,
        generation: Generation,
        events: Events,
        closing: Events,
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(headers={**HEADERS, **headers}, media_type="text/event-stream")
        # Without a length: it is not known, and the connection says where the end is.
        self.raw_headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]
        self._service = service
        self._generation = generation
        self._events = events
        self._closing = closing
        self._over = False
        self._send: Send

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        metrics, limits = self._service.metrics, self._service.limits
        self._send = send
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._watch_client, receive, tasks.cancel_scope)
                self._bound(limits.buffer_kib << 10, tasks.cancel_scope)
                await self._stream(limits.ping_s)
                tasks.cancel_scope.cancel()
        except* TimeoutError:
            metrics.count("slow_client")
        except* OSError:
            metrics.count("disconnected")
        finally:
            self._generation.close()

    def _bound(self, most: int, scope: anyio.CancelScope) -> None:
        def drop() -> None:
            self._service.metrics.count("slow_client")
            scope.cancel()

        self._generation.most_untaken, self._generation.overflow = most, drop

    async def _watch_client(self, receive: Receive, scope: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        if not self._over:
            self._service.metrics.count("disconnected")
            scope.cancel()

    async def _stream(self, ping_s: float) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        await self._put(start)
        generation = self._generation
        while True:
            failed, over = generation.error, generation.ended
            body = b"".join([data(event) for event in self._events(generation)])
            if failed is not None:
                generation.cancel()
                await self._body(body + error(self._service.refusal(failed)), more=False)
                return
            if over:
                body += b"".join([data(event) for event in self._closing(generation)])
                await self._body(body + DONE, more=False)
                return
            if body:
                await self._body(body, more=True)
            with anyio.move_on_after(ping_s) as silence:
                await generation.news()
            if silence.cancelled_caught:
                await self._body(PING, more=True)

    async def _body(self, body: bytes, *, more: bool) -> None:
        self._over = not more
        await self._put({"type": "http.response.body", "body": body, "more_body": more})

    async def _put(self, message: dict[str, Any]) -> None:
        """Raises ``TimeoutError`` if the client takes nothing for too long."""
        with anyio.fail_after(self._service.limits.send_timeout_s):
            await self._send(message)


async def unless_gone(request: Request, service: Service, work: Callable[[], Any]) -> Any:
    """What ``work`` gives, unless the client leaves first: then work is cancelled, and ``ClientGone`` raised.

    The whole body must have been read.
    """
    result: list[Any] = []
    problem: list[Exception] = []

    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            service.metrics.count("disconnected")
            tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        try:
            result.append(await work())
        except Exception as error:
            problem.append(error)  # out of the group, so that it is raised as itself and not in a group
        tasks.cancel_scope.cancel()
    if problem:
        raise problem[0]
    if not result:
        raise ClientGone
    return result[0]


class ClientGone(CapacityError):
    """The client left before there was anything to tell it (499, which is never sent)."""

    def __init__(self) -> None:
        super().__init__("the client is gone", code="client_gone")
