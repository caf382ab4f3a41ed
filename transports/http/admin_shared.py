"""What several admin routes need."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, TypeVar

import anyio
import msgspec
from starlette.requests import Request

from stepwell.core.errors import CapacityError
from stepwell.core.types import NS_PER_S
from stepwell.transports.errors import RequestError
from stepwell.transports.http.body import read_body
from stepwell.transports.http.decoding import decode
from stepwell.transports.service import Service

T = TypeVar("T")

Why = Annotated[str, msgspec.Meta(max_length=200)]
"""Goes into the journal and the log."""

MOST_BODY = 64 << 10
"""Bytes; options go into the journal."""

PATIENCE_S = 10.0
"""The engine takes in what an operator wants between two steps' events, at once unless something is very wrong."""


async def asked(request: Request, decoder: msgspec.json.Decoder[T]) -> T:
    """The body; an empty one is an empty object."""
    body = await read_body(request)
    if len(body) > MOST_BODY:
        raise RequestError(f"larger than {MOST_BODY >> 10} KiB", status=413, code="request_too_large")
    return decode(body or b"{}", decoder)


async def taken_in(service: Service, condition: Callable[[], bool]) -> None:
    """Wait until the scheduler has taken in what was posted; raises ``CapacityError`` if it never does."""
    if service.alive:
        raise CapacityError(service.alive, code="not_serving")
    with anyio.move_on_after(PATIENCE_S):
        while not condition():
            await anyio.sleep(0.001)
        return
    raise CapacityError("the engine has not taken that in", code="not_serving")


def when(service: Service, at_ns: int) -> str:
    """A time of the engine's clock, on the wall's."""
    ago_s = (service.clock.now_ns() - at_ns) / NS_PER_S
    return datetime.fromtimestamp(time.time() - ago_s, UTC).isoformat(timespec="milliseconds")
