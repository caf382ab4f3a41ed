"""The operator's own application, for a port of its own; the engine is run by the public one."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.routing import Route

from stepwell.core.errors import StepwellError
from stepwell.transports.gateway.gate import Gate
from stepwell.transports.gateway.guards import Guard
from stepwell.transports.http.admin import ADMIN
from stepwell.transports.http.app import GUARDS, failed, health, metrics, ready, refused, refused_by_router
from stepwell.transports.http.named import Named
from stepwell.transports.service import Service


def create_admin_app(service: Service, guards: Sequence[Guard] = GUARDS) -> Starlette:
    """Of a server with ``admin.port``: what it operates by, health, and metrics if they are wanted here."""
    routes = [
        Route("/health", health, methods=["GET"]),
        Route("/ready", ready, methods=["GET"]),
        *ADMIN,
        *([Route("/metrics", metrics, methods=["GET"])] if service.config.admin.metrics else []),
    ]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Named), Middleware(Gate, gateway=service.gateway, guards=guards)],
        exception_handlers={StepwellError: refused, HTTPException: refused_by_router, Exception: failed},
    )
    app.state.service = service
    return app
