"""Counts WebSockets from outside, whatever serves them: how many were opened, and how long they lived."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stepwell.core.metrics_histogram import LIFE, Histogram
from stepwell.core.types import NS_PER_S
from stepwell.transports.service import Service


class SocketTimes:
    """A layer of the application."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._now_ns = service.clock.now_ns
        self._opened = 0
        self._lives = Histogram(LIFE)
        metrics = service.metrics
        metrics.counters["vllm:websocket_connections"] = "WebSockets opened.", lambda: self._opened
        metrics.measured["vllm:websocket_connection_duration_seconds"] = "How long they lived.", self._lives

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await self._app(scope, receive, send)
            return
        since_ns = 0

        async def sent(message: Message) -> None:
            nonlocal since_ns
            if message["type"] == "websocket.accept" and not since_ns:
                since_ns = self._now_ns()
                self._opened += 1
            await send(message)

        try:
            await self._app(scope, receive, sent)
        finally:
            if since_ns:
                self._lives.add((self._now_ns() - since_ns) / NS_PER_S)
