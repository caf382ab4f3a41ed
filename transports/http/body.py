"""What every endpoint needs of a request: the service, the body within its bounds, and a name to answer to."""

from __future__ import annotations

import re
from typing import cast

import anyio
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.types import ASGIApp, Receive, Scope, Send

from stepwell.transports.errors import RequestError
from stepwell.transports.http.sse import ClientGone
from stepwell.transports.ids import fresh
from stepwell.transports.service import Service
from stepwell.transports.straight import is_whole
from stepwell.transports.unstarted import Unstarted

_ROOM = "stepwell.body"
_SAFE_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


def service_of(request: Request) -> Service:
    """The application's service."""
    return cast(Service, request.app.state.service)


def request_id(request: HTTPConnection, named: str | None = None) -> str:
    """The client's own id if it is short and harmless, for the answer's header only; otherwise ``named``, or a fresh
    one."""
    given = request.headers.get("x-request-id", named or "")
    return given if _SAFE_ID.fullmatch(given) else fresh("req-")


async def read_body(request: Request) -> bytes:
    """The whole body; refused as soon as it is known to be too large, or if it takes too long to come."""
    service = service_of(request)
    limits = service.limits
    most = int(limits.body_mib * (1 << 20))
    if int(request.headers.get("content-length", "0") or 0) > most:
        raise _too_large(limits.body_mib)
    room: Room | None = request.scope.get(_ROOM)
    try:
        if is_whole(request.scope):
            return await _read(request, most, limits.body_mib, room)
        with service.stopping.given_up(), anyio.fail_after(limits.body_timeout_s):
            return await _read(request, most, limits.body_mib, room)
    except TimeoutError:
        raise RequestError("the body took too long to arrive", status=408, code="request_timeout") from None
    except ClientDisconnect:
        raise ClientGone from None


async def _read(request: Request, most: int, mib: float, room: Room | None) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise _too_large(mib)
        if room is not None:
            room.take(len(part))
        parts.append(part)
    return b"".join(parts)


class Room:
    """What the body of one request takes of the room that there is for all of them."""

    def __init__(self, bodies: Unstarted) -> None:
        self._bodies = bodies
        self._size = 0

    def take(self, size: int) -> None:
        """So much of it came.  Raises ``CapacityError`` if there is no room for that."""
        self._bodies.take(size)
        self._size += size

    def give(self) -> None:
        """Nothing is left of it.  Harmless the second time."""
        self._bodies.give(self._size)
        self._size = 0


class BodyRoom:
    """The layer that gives a request's room back when it is over, if not before."""

    def __init__(self, app: ASGIApp, bodies: Unstarted) -> None:
        self._app = app
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        room = Room(self._bodies)
        try:
            await self._app({**scope, _ROOM: room}, receive, send)
        finally:
            room.give()


def body_done(request: Request) -> None:
    """The request is understood, and nothing holds on to its body any more."""
    room: Room | None = request.scope.get(_ROOM)
    if room is not None:
        room.give()


def _too_large(mib: float) -> RequestError:
    return RequestError(f"the body is larger than {mib:g} MiB", status=413, code="request_too_large")
