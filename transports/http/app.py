"""The application: routes, health, models, metrics, and the engine as a task of its lifespan."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import anyio
import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from stepwell.core.errors import StepwellError
from stepwell.core.metrics import CONTENT_TYPE
from stepwell.transports.errors import Refusal, RequestError
from stepwell.transports.gateway.gate import Gate
from stepwell.transports.gateway.guards import Guard
from stepwell.transports.gateway.limits import RATE_HEADERS
from stepwell.transports.http.admin import ADMIN
from stepwell.transports.http.answering import ENGINE_ID, check_model
from stepwell.transports.http.anthropic import ANTHROPIC_ROUTES
from stepwell.transports.http.anthropic_shape import REQUEST_ID, error_of, status_of, theirs
from stepwell.transports.http.batches import BATCHES, runner_of
from stepwell.transports.http.body import BodyRoom, request_id, service_of
from stepwell.transports.http.files import FILES
from stepwell.transports.http.named import Named
from stepwell.transports.http.openai import chat, completions
from stepwell.transports.http.openapi import OPENAPI
from stepwell.transports.http.responses import RESPONSES_ROUTES
from stepwell.transports.http.sockets import SocketTimes
from stepwell.transports.http.sse import ClientGone
from stepwell.transports.http.tokenizing import TOKENIZING_ROUTES
from stepwell.transports.responses.house import Responses
from stepwell.transports.service import Service
from stepwell.transports.stopping import GOODBYE_S
from stepwell.transports.tracing import TraceHeaders
from stepwell.transports.websocket import responses_socket

CLIENT_GONE = 499
"""Never sent: whoever would get it has left."""

GUARDS = (Guard("/admin"),)
"""Admin routes are no client's, whatever key it has."""


def create_app(service: Service, guards: Sequence[Guard] = GUARDS) -> Starlette:
    """An ASGI application around ``service``; its lifespan runs the engine.  ``guards``: routes with other tokens."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        started = anyio.Event()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(service.run, started.set)
            await started.wait()
            if app.state.batches is not None:
                await tasks.start(app.state.batches.run)
            try:
                yield
            finally:
                service.stop()
                # Not for a step that hangs: whoever waited for its tokens has been told.
                tasks.cancel_scope.deadline = anyio.current_time() + GOODBYE_S

    apart = service.config.admin.port >= 0  # see ``admin_app``
    routes = [
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/v1/models", models, methods=["GET"]),
        Route("/v1/models/{id:path}", model, methods=["GET"]),
        *(Route(path, health, methods=["GET"]) for path in ("/health", "/livez", "/ping")),
        *(Route(path, ready, methods=["GET"]) for path in ("/ready", "/readyz")),
        *([] if apart and service.config.admin.metrics else [Route("/metrics", metrics, methods=["GET"])]),
        *OPENAPI,
        *([] if apart else ADMIN),
        *FILES,
        *BATCHES,
        *RESPONSES_ROUTES,
        *ANTHROPIC_ROUTES,
        *TOKENIZING_ROUTES,
        WebSocketRoute("/v1/responses", responses_socket),
    ]
    app = Starlette(
        routes=routes,
        middleware=_layers(service, guards),
        exception_handlers={StepwellError: refused, HTTPException: refused_by_router, Exception: failed},
        lifespan=lifespan,
    )
    app.router.default = nowhere(app)
    app.state.service = service
    app.state.responses = Responses(service)
    app.state.created = int(time.time())
    app.state.batches = runner_of(app, service)
    return app


def _layers(service: Service, guards: Sequence[Guard]) -> list[Middleware]:
    """Around the routes, the outermost first."""
    origins = list(service.limits.origins)
    cors = Middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=["GET", "POST", "DELETE"],
        allow_headers=["*"],
        expose_headers=["X-Request-Id", ENGINE_ID, "Retry-After", "retry-after-ms", *RATE_HEADERS],
    )
    limits = service.admission

    def told(headers: Mapping[str, str]) -> Mapping[str, str]:
        return limits.headers(service.wire.tenant(headers))

    traced = [Middleware(TraceHeaders)] if service.config.telemetry.traces else []
    sockets = Middleware(SocketTimes, service=service)
    gate = Middleware(Gate, service.gateway, guards, told if limits.limits.any else None)
    return [
        Middleware(Named),
        *traced,
        *([cors] if origins else []),
        gate,
        Middleware(BodyRoom, bodies=service.bodies),
        sockets,
    ]


# ------------------------------------------------------------------------------------------------ errors


def _error(request: Request, refusal: Refusal, more: Mapping[str, str] | None = None) -> Response:
    headers = {"X-Request-Id": request_id(request), **refusal.headers, **(more or {})}
    if refusal.status in (408, 413, 503):  # and of a body that nobody reads, the rest need not come
        headers["Connection"] = "close"
    body, status = refusal.body, refusal.status
    if theirs(request.url.path):
        body, status = msgspec.json.encode(error_of(refusal)), status_of(refusal)
        headers[REQUEST_ID] = headers["X-Request-Id"]
    return Response(body, status, headers, media_type="application/json")


async def refused(request: Request, error: Exception) -> Response:
    """One of ours, in OpenAI's shape."""
    if isinstance(error, ClientGone):
        return Response(status_code=CLIENT_GONE)
    return _error(request, service_of(request).refusal(error))


async def refused_by_router(request: Request, error: Exception) -> Response:
    """No such path, or not with this method."""
    status, more = (error.status_code, error.headers) if isinstance(error, HTTPException) else (500, None)
    code = {404: "not_found", 405: "method_not_allowed"}.get(status, "http_error")
    message = f"{request.method} {request.url.path[:200]}: {code.replace('_', ' ')}"
    return _error(request, Refusal(status, code, message), more)


def nowhere(app: Starlette) -> ASGIApp:
    """Where no route leads; a handshake is told as a request would be, if the server can."""
    found_nothing = app.router.default

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket" or "websocket.http.response" not in scope.get("extensions", {}):
            await found_nothing(scope, receive, send)
            return
        refusal = Refusal(404, "not_found", f"WebSocket {scope['path'][:200]}: not found")
        socket = WebSocket(scope, receive, send)
        await socket.send_denial_response(Response(refusal.body, refusal.status, media_type="application/json"))

    return answer


async def failed(request: Request, error: Exception) -> Response:
    """A bug of ours; the log has the rest."""
    return _error(request, service_of(request).refusal(error))


# ------------------------------------------------------------------------------------------------ looking


def _model(request: Request) -> dict[str, object]:
    service = service_of(request)
    return {
        "id": service.model.name,
        "object": "model",
        "created": request.app.state.created,
        "owned_by": "stepwell",
        "max_model_len": service.context,
        "precision": service.model.precision,
        "warnings": list(service.model.warnings),
    }


async def models(request: Request) -> Response:
    """``GET /v1/models``: the one there is, if the key is for it."""
    shown = [_model(request)] if service_of(request).wire.opens(request.headers) else []
    return JSONResponse({"object": "list", "data": shown})


async def model(request: Request) -> Response:
    """``GET /v1/models/{id}``."""
    service, name = service_of(request), request.path_params["id"]
    check_model(service, name)
    if not service.wire.opens(request.headers):
        raise RequestError(f"this key may not use the model {name!r}", status=404, code="model_not_found")
    return JSONResponse(_model(request))


def _state(request: Request, problem: str) -> Response:
    warnings = [each for each in [service_of(request).metrics.policy.warning] if each]
    told = {"status": "unavailable" if problem else "ok", "reason": problem, "warnings": warnings}
    return JSONResponse(told, 503 if problem else 200)


async def health(request: Request) -> Response:
    """Should the process be restarted?"""
    return _state(request, service_of(request).alive)


async def ready(request: Request) -> Response:
    """Should requests be sent here now?"""
    return _state(request, service_of(request).unready)


async def metrics(request: Request) -> Response:
    """For a Prometheus scraper."""
    return Response(service_of(request).metrics.exposition(), headers={"Content-Type": CONTENT_TYPE})
