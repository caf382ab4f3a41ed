"""The gate: one layer of the application that every request and every handshake goes through.

Nothing passes without a key but what ``OPEN`` lists, so that a route which is new is closed until somebody opens it.
What passes carries no key any more, and says who asks (``caller``).  Chunks of a stream do not come through here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import msgspec
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stepwell.core.config_gateway import KeyConfig
from stepwell.core.errors import StepwellError, UserError
from stepwell.transports.errors import RequestError, refusal_of
from stepwell.transports.gateway.caller import RAW, by_key
from stepwell.transports.gateway.credentials import NO_KEY, shown_by, without_credentials
from stepwell.transports.gateway.gateway import Gateway
from stepwell.transports.gateway.guards import GUARDED, Guard, guard_of
from stepwell.transports.gateway.keys import unauthorised
from stepwell.transports.http.anthropic_shape import REQUEST_ID, error_of, theirs
from stepwell.transports.http.body import request_id

OPEN = ("/health", "/livez", "/ping", "/ready", "/readyz")
"""What is asked without a key by whoever looks after the process; exactly so, and only to read."""

METRICS = "/metrics"
MODELS = "/v1/"
WRONG = "this key opens nothing here"
CHALLENGE = 'Bearer realm="stepwell"'
_READS = ("GET", "HEAD")


Told = Callable[[Mapping[str, str]], Mapping[str, str]]
"""From the headers of a request those of its answer that say what its tenant has left."""


class Gate:
    """``guards``: routes that want other tokens.  ``told``: headers for answers under ``/v1``, if there are limits."""

    def __init__(self, app: ASGIApp, gateway: Gateway, guards: Sequence[Guard] = (), told: Told | None = None) -> None:
        self._app = app
        self._told = told
        self._gateway = gateway
        self._guards = guards

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):  # lifespan, which no client sends
            await self._app(scope, receive, send)
            return
        try:
            passing = self._passing(scope)
        except UserError as error:
            await self._refuse(error, scope, receive, send)
            return
        if self._told is not None and passing["type"] == "http" and _path(passing).startswith(MODELS):
            send = _telling(self._told, passing, send)
        await self._app(passing, receive, send)

    def _passing(self, scope: Scope) -> Scope:
        """What goes on inside.  Raises ``RequestError`` for what does not."""
        if any(name == RAW for name, _ in scope["headers"]):
            scope = {**scope, "headers": [each for each in scope["headers"] if each[0] != RAW]}
        path = _path(scope)
        guard = guard_of(path, self._guards)
        if guard is not None:
            return self._guarded(scope, guard)
        if scope["type"] == "websocket":
            _check_page(scope, self._gateway.config.server.origins)
        if not self._gateway.keyed:
            return without_credentials(scope) if scope["type"] == "websocket" else scope
        if self._is_open(scope, path):
            return scope
        key = self._key(scope)
        _check(key, path, scope)
        clean = without_credentials(scope)
        clean["headers"].append((RAW, by_key(key.name).encode()))
        return clean

    def _is_open(self, scope: Scope, path: str) -> bool:
        if scope["type"] != "http" or scope["method"] not in _READS:
            return False
        return path in OPEN or (path == METRICS and self._gateway.config.gateway.metrics == "open")

    def _key(self, scope: Scope) -> KeyConfig:
        shown = shown_by(scope)
        found = self._gateway.ring.shown(shown.key, time.time_ns()) if shown.key else None
        if found is None:
            raise unauthorised(shown.problem or WRONG)
        return found

    def _guarded(self, scope: Scope, guard: Guard) -> Scope:
        if not guard.digests:
            if self._gateway.keyed:
                raise unauthorised(f"{guard.prefix} wants a token of its own, and none is configured")
            return scope
        shown = shown_by(scope)
        if not shown.key or not guard.opens(shown.key):
            problem = "" if shown.problem == NO_KEY else shown.problem
            raise unauthorised(problem or f"{guard.prefix} wants a token of its own: Authorization: Bearer TOKEN")
        return {**without_credentials(scope), GUARDED: guard.prefix}

    async def _refuse(self, error: UserError, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = refusal_of(error)
        self._gateway.count("unauthorised" if refusal.status == 401 else "forbidden")
        if scope["type"] == "websocket" and "websocket.http.response" not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": 1008, "reason": refusal.message})
            return
        headers = {"X-Request-Id": request_id(HTTPConnection(scope)), **refusal.headers}
        if refusal.status == 401:
            headers["WWW-Authenticate"] = CHALLENGE
        body = refusal.body
        if theirs(_path(scope)):
            body, headers[REQUEST_ID] = msgspec.json.encode(error_of(refusal)), headers["X-Request-Id"]
        answer = Response(body, refusal.status, headers, media_type="application/json")
        await answer(scope, receive, send)


def _telling(told: Told, scope: Scope, send: Send) -> Send:
    """Adds to the head of the answer what is known by then, unless the answer says it itself."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            head: list[tuple[bytes, bytes]] = list(message.get("headers", ()))
            if not any(name.startswith(b"x-ratelimit-") for name, _ in head):
                try:
                    more = told(Headers(scope=scope))
                except StepwellError:  # who that is was odd, and it has been refused for it
                    more = {}
                head += [(name.encode(), value.encode()) for name, value in more.items()]
                message = {**message, "headers": head}
        await send(message)

    return sending


def _path(scope: Scope) -> str:
    """As the router sees it: without the prefix that the application is mounted under."""
    path, root = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(root) if root else path


def _check_page(scope: Scope, origins: Sequence[str]) -> None:
    """Browsers name a page's origin and ask nobody else before a handshake, so any page could connect to a server that
    only this machine can reach."""
    heads = {name: value.decode("latin-1") for name, value in scope["headers"] if name in (b"origin", b"host")}
    origin = heads.get(b"origin", "")
    if not origin or "*" in origins or origin in origins or origin.partition("://")[2] == heads.get(b"host"):
        return
    raise RequestError("pages of this origin may not connect", field="Origin", status=403, code="origin_not_allowed")


def _check(key: KeyConfig, path: str, scope: Scope) -> None:
    """Whether it may be used here, and from that page."""
    if path == METRICS and not key.metrics:
        raise RequestError(
            "this key may not read metrics: `metrics = true` lets it", status=403, code="key_not_allowed"
        )
    if not key.origins:
        return
    for name, value in scope["headers"]:
        if name == b"origin" and value.decode("latin-1") not in key.origins:
            raise RequestError(
                "this key may not be used from that page", field="Origin", status=403, code="origin_not_allowed"
            )
