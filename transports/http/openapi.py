"""``/openapi.json``: every route, and what it takes, in OpenAPI 3.1, made of the types that requests are read with.

What a body may be is said once, by its struct (and by ``described`` for fields that are bytes at first).  A test
enumerates the router, so no route goes without a line in ``OPERATIONS``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route

import stepwell
from stepwell.transports.gateway.gate import OPEN
from stepwell.transports.http.admin_guard import PREFIX
from stepwell.transports.http.body import service_of
from stepwell.transports.http.described import described
from stepwell.transports.http.operations import OPERATIONS, Operation

Json = dict[str, Any]

_REFS = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")

ERROR: Json = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
"""What everything that is refused is told in, but for Anthropic's routes."""

ANTHROPIC_ERROR: Json = {
    "type": "object",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        },
    },
}
"""What theirs are told in."""


_SCHEMES: Json = {
    "key": {"type": "http", "scheme": "bearer", "description": "A client's key."},
    "apiKey": {
        "type": "apiKey",
        "in": "header",
        "name": "x-api-key",
        "description": "The same, as Anthropic's SDK sends it.",
    },
    "adminToken": {"type": "http", "scheme": "bearer", "description": "An operator's token, which is no key."},
}
_KEY: list[Json] = [{"key": []}, {"apiKey": []}]


def _security(path: str, keyed: bool, open: Sequence[str]) -> Json:
    """What a route wants that is not what most want.  Where there are neither keys nor a token, an operator on the
    machine itself needs none."""
    if path in open:
        return {"security": []}
    if path.startswith(f"{PREFIX}/"):
        return {"security": [{"adminToken": []}] if keyed else [{"adminToken": []}, {}]}
    return {}


async def openapi(request: Request) -> Response:
    """``GET /openapi.json``."""
    service = service_of(request)
    keyed, open = service.gateway.keyed, (*OPEN, *(("/metrics",) if service.config.gateway.metrics == "open" else ()))
    routes = tuple(listed(request.app.routes))
    body = await service.aside(lambda: _encoded(routes, keyed, open))  # which takes a moment, the first time
    return Response(body, media_type="application/json")


OPENAPI = (Route("/openapi.json", openapi, methods=["GET"]),)


@cache
def _encoded(routes: tuple[tuple[str, str], ...], keyed: bool, open: tuple[str, ...]) -> bytes:
    return msgspec.json.encode(description(routes, keyed, open))


def listed(routes: Sequence[BaseRoute], prefix: str = "") -> list[tuple[str, str]]:
    """Method and path of each HTTP route, HEAD left out where GET is."""
    found: list[tuple[str, str]] = []
    for route in routes:
        if isinstance(route, Mount):
            found += listed(route.routes, prefix + route.path)
        elif isinstance(route, Route):
            found += [(method, prefix + route.path) for method in sorted(route.methods or ()) if method != "HEAD"]
    return found


def description(routes: Sequence[tuple[str, str]], keyed: bool = True, open: Sequence[str] = OPEN) -> Json:
    """The whole document, of those ``routes`` that have a line in ``OPERATIONS``.

    ``keyed``: there are keys, so that all but the routes that are ``open`` need one.
    """
    known = [
        (method, path, OPERATIONS[f"{method} {path}"]) for method, path in routes if f"{method} {path}" in OPERATIONS
    ]
    schemas = _schemas([each.body for _, _, each in known if each.body is not None])
    paths: dict[str, Json] = {}
    for method, path, operation in known:
        plain = _PARAMETER.sub(r"{\1}", path)
        made = _operation(operation, _PARAMETER.findall(path))
        paths.setdefault(plain, {})[method.lower()] = made | _security(path, keyed, open)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Stepwell",
            "version": stepwell.__version__,
            "description": "Language models behind OpenAI's and Anthropic's shapes, and their scheduler.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": _KEY if keyed else [{}, *_KEY],
        "paths": paths,
        "components": {
            "securitySchemes": _SCHEMES,
            "schemas": {"Error": ERROR, "AnthropicError": ANTHROPIC_ERROR, **schemas},
        },
    }


def _operation(operation: Operation, parameters: Sequence[str]) -> Json:
    good: Json = {operation.answer: {}}
    if operation.streams:
        good["text/event-stream"] = {}
    refused = {"application/json": {"schema": _ref(operation.error)}}
    made: Json = {
        "summary": operation.summary,
        "responses": {
            str(operation.status): {"description": "As asked.", "content": good},
            "4XX": {"description": "What is wrong, and where.", "content": refused},
            "5XX": {"description": "No room, or a bug.", "content": refused},
        },
    }
    told = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in parameters]
    told += [{"name": name, "in": "query", "schema": schema} for name, schema in operation.query.items()]
    if told:
        made["parameters"] = told
    if operation.body is not None:
        content = {"application/json": {"schema": _ref(operation.body.__name__)}}
        made["requestBody"] = {"required": True, "content": content}
    if operation.form is not None:
        schema = {"type": "object", "properties": dict(operation.form), "required": ["file", "purpose"]}
        made["requestBody"] = {"required": True, "content": {"multipart/form-data": {"schema": schema}}}
    return made


def _schemas(bodies: Sequence[type]) -> Mapping[str, Json]:
    """Of the bodies and of whatever they hold."""
    told = [described(each) for each in dict.fromkeys(bodies)]
    _, components = msgspec.json.schema_components(told, ref_template=_REFS)
    return dict(components)


def _ref(name: str) -> Json:
    return {"$ref": _REFS.format(name=name)}
