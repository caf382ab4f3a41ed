"""Every answer has a name: ``X-Request-Id``, also those that were refused on the way, and those of a handshake."""

from __future__ import annotations

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stepwell.transports.http.body import request_id

_HEADER = b"x-request-id"
_HEADS = ("http.response.start", "websocket.accept", "websocket.http.response.start")
"""Messages that carry the head of an answer."""


class Named:
    """The outermost layer of the application; an answer that names itself is left as it is."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return

        async def named(message: Message) -> None:
            if message["type"] in _HEADS:
                head: list[tuple[bytes, bytes]] = list(message.get("headers") or ())
                if not any(name.lower() == _HEADER for name, _ in head):
                    head.append((_HEADER, request_id(HTTPConnection(scope)).encode()))
                    message = {**message, "headers": head}
            await send(message)

        await self._app(scope, receive, named)
