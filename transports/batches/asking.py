"""One line of a batch as a request: it goes through the endpoint that a client's would go through.

Nothing is sent anywhere: the endpoint is called with a request made of the line, on behalf of the tenant whose batch it
is.  What only connections have (keys, origins, the bounds of a body that is still coming) is left out.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import anyio
import msgspec
from msgspec import Raw
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from stepwell.core.errors import CapacityError, StepwellError
from stepwell.transports.batches.lines import Line, asked_by
from stepwell.transports.errors import Refusal, RequestError
from stepwell.transports.gateway.caller import on_behalf_of
from stepwell.transports.http.leaving import STAYS
from stepwell.transports.service import Service
from stepwell.transports.store.batches import Result, Usage

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
"""What a batch may be of."""

Endpoint = Callable[[Request], Awaitable[Response]]


class Again(Exception):
    """The line has no answer yet.  ``wait_s``: until its tenant's own limit lets it through; 0: there was no room."""

    def __init__(self, wait_s: float) -> None:
        self.wait_s = wait_s


class Over(Exception):
    """Nothing is answered any more: the line's turn is in another life of the server."""


class _Unwanted(msgspec.Struct):
    """What an answer that is kept in one piece cannot be."""

    stream: Any = None
    background: Any = None


class _Details(msgspec.Struct):
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class _Tokens(msgspec.Struct):
    """Of OpenAI's two kinds."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    prompt_tokens_details: _Details | None = None
    completion_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None
    output_tokens_details: _Details | None = None


class _Answer(msgspec.Struct):
    usage: _Tokens | None = None


_UNWANTED = msgspec.json.Decoder(_Unwanted)
_ANSWER = msgspec.json.Decoder(_Answer)
_NONE = _Details()


def endpoints_of(routes: Iterable[BaseRoute]) -> dict[str, Endpoint]:
    """Those of ``ENDPOINTS`` that there are, by their paths."""
    found = [each for each in routes if isinstance(each, Route) and "POST" in (each.methods or ())]
    return {each.path: each.endpoint for each in found if each.path in ENDPOINTS}


class Asking:
    """Asks the endpoints of ``app``."""

    def __init__(self, app: Starlette, service: Service, klass: str) -> None:
        """``klass``: what lines are served as."""
        self._app = app
        self._service = service
        self._klass = klass
        self.endpoints = endpoints_of(app.routes)

    async def __call__(self, line: Line, endpoint: str, tenant: str) -> Result:
        """The line's result.  Raises ``Again`` or ``Over`` if it has none."""
        name = uuid.uuid4().hex
        custom_id = ""
        try:
            asked = asked_by(line)
            custom_id = asked.custom_id
            _check(asked.body)
            answer = await self.endpoints[endpoint](self._request(asked.body, endpoint, tenant, name))
        except Exception as error:
            refusal = self._refusal(error)
            return _result(line, name, custom_id, refusal.status, refusal.body)
        name = answer.headers.get("x-request-id", name).removeprefix("req-")
        return _result(line, name, custom_id, answer.status_code, bytes(answer.body))

    def _refusal(self, error: Exception) -> Refusal:
        """What is recorded; raises if that is nothing."""
        service = self._service
        if service.stopping.is_set() or service.draining or service.engine.failed:
            raise Over from error
        refusal = service.refusal(error)
        if isinstance(error, CapacityError) and refusal.status in (429, 503) and getattr(error, "retry", True):
            raise Again(max(refusal.retry_ms, 1000) / 1000 if refusal.code == "rate_limit_exceeded" else 0) from error
        if not isinstance(error, StepwellError):
            service.metrics.count("batch_line_failed")
        return refusal

    def _request(self, body: Raw, endpoint: str, tenant: str, name: str) -> Request:
        data = bytes(body)
        headers = {
            "content-type": "application/json",
            "content-length": str(len(data)),
            "x-request-id": f"req-{name}",
            **on_behalf_of(tenant, self._klass),
        }
        scope: dict[str, Any] = {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": endpoint,
            "raw_path": endpoint.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(key.encode(), value.encode()) for key, value in headers.items()],
            "client": None,
            "server": None,
            "app": self._app,
            "state": {},
            STAYS: True,
        }
        told = False

        async def receive() -> dict[str, Any]:
            nonlocal told
            if told:
                await anyio.sleep_forever()
            told = True
            return {"type": "http.request", "body": data, "more_body": False}

        return Request(scope, receive)


def _check(body: Raw) -> None:
    try:
        unwanted = _UNWANTED.decode(body)
    except msgspec.DecodeError:  # the endpoint says it better
        return
    for name in ("stream", "background"):
        if getattr(unwanted, name):
            raise RequestError("a line of a batch is answered in one piece", field=name)


def _result(line: Line, name: str, custom_id: str, status: int, body: bytes) -> Result:
    failed = status != 200
    response = {"status_code": status, "request_id": f"req-{name}", "body": Raw(body)}
    return Result(line.place, failed, _row(name, custom_id, response, None), Usage() if failed else _usage(body))


def without_answer(line: Line, code: str, message: str) -> Result:
    """Of a line that was not run, or not to its end."""
    try:
        custom_id = asked_by(line).custom_id
    except RequestError:
        custom_id = ""
    return Result(line.place, True, _row(uuid.uuid4().hex, custom_id, None, {"code": code, "message": message}))


def _row(name: str, custom_id: str, response: dict[str, Any] | None, error: dict[str, str] | None) -> bytes:
    row = {"id": f"batch_req_{name}", "custom_id": custom_id, "response": response, "error": error}
    return msgspec.json.encode(row) + b"\n"


def _usage(body: bytes) -> Usage:
    try:
        tokens = _ANSWER.decode(body).usage or _Tokens()
    except msgspec.ValidationError:  # an answer of a kind that has none of these
        tokens = _Tokens()
    asked = tokens.prompt_tokens_details or tokens.input_tokens_details or _NONE
    answered = tokens.completion_tokens_details or tokens.output_tokens_details or _NONE
    return Usage(
        input=tokens.prompt_tokens or tokens.input_tokens,
        cached=asked.cached_tokens,
        output=tokens.completion_tokens or tokens.output_tokens,
        reasoning=answered.reasoning_tokens,
    )
