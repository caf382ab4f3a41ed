"""What a client shows at the door, read off the bytes of its head; whatever is odd there is no key."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote_plus

import msgspec
from starlette.types import Scope

MOST_KEY = 512
"""Bytes of a key."""

IN_PROTOCOL = "openai-insecure-api-key."
"""What a subprotocol begins with that carries a key: a page cannot set headers of a WebSocket."""

_KEY = re.compile(rb"[\x21-\x7e]{1,%d}" % MOST_KEY)
_BEARER = re.compile(rb"bearer +([\x21-\x7e]+) *", re.IGNORECASE)
_IN_QUERY = ("api_key", "api-key", "apikey", "access_token", "x-api-key", "authorization")
_HEADERS = (b"authorization", b"x-api-key", b"sec-websocket-protocol")

NO_KEY = "a key is needed here: Authorization: Bearer KEY"
NOT_ONE = "more than one key was given; which one is meant?"
NO_BEARER = "the header is written Authorization: Bearer KEY"
NOT_PLAIN = f"a key is up to {MOST_KEY} visible letters of ASCII"
NOT_IN_QUERY = "a key in the address ends up in logs, so none is taken from there: Authorization: Bearer KEY"
NO_PAGE = "keys in a subprotocol are for pages, whose browser names their origin"


class Shown(msgspec.Struct, frozen=True):
    """``key`` is empty if there is none that could be looked up, and then ``problem`` says why."""

    key: bytes = b""
    problem: str = NO_KEY


def shown_by(scope: Scope) -> Shown:
    """The one key that a request or a handshake carries."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    found: list[bytes] = []
    for name, value in headers:
        if name == b"authorization":
            match = _BEARER.fullmatch(value)
            if match is None:
                return Shown(problem=NO_BEARER if value.strip() else NO_KEY)
            found.append(match[1])
        elif name == b"x-api-key":
            found.append(value)
    if scope["type"] == "websocket":
        found += _in_protocols(scope)
        if len(found) == 1 and not any(name in _HEADERS[:2] for name, _ in headers) and not _origin(headers):
            return Shown(problem=NO_PAGE)
    if _in_query(scope["query_string"]):
        return Shown(problem=NOT_IN_QUERY)
    if len(found) != 1:
        return Shown(problem=NOT_ONE if found else NO_KEY)
    return Shown(found[0], "") if _KEY.fullmatch(found[0]) else Shown(problem=NOT_PLAIN)


def _in_protocols(scope: Scope) -> list[bytes]:
    protocols: Iterable[str] = scope.get("subprotocols") or ()
    return [
        each.removeprefix(IN_PROTOCOL).encode("latin-1", "replace")
        for each in protocols
        if each.startswith(IN_PROTOCOL)
    ]


def _origin(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(name == b"origin" and value for name, value in headers)


def _in_query(query: bytes) -> bool:
    if not query:
        return False
    names = (part.partition("=")[0] for part in query.decode("latin-1").split("&"))
    return any(unquote_plus(name).strip().lower() in _IN_QUERY for name in names)


def without_credentials(scope: Scope) -> Scope:
    """The same without them: what nobody behind the door knows, nobody can tell."""
    clean: Scope = {**scope, "headers": [each for each in scope["headers"] if each[0] not in _HEADERS]}
    if scope["type"] == "websocket":
        clean["subprotocols"] = [each for each in scope.get("subprotocols") or () if not each.startswith(IN_PROTOCOL)]
    return clean
