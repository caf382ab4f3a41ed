"""What every endpoint needs of a request: the service, the body within its bounds, and a name to answer to."""

from __future__ import annotations

import re
import uuid
from typing import cast

import anyio
from starlette.requests import ClientDisconnect, HTTPConnection, Request

from stepwell.transports.errors import RequestError
from stepwell.transports.http.sse import ClientGone
from stepwell.transports.service import Service

_SAFE_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


def service_of(request: Request) -> Service:
    """The application's service."""
    return cast(Service, request.app.state.service)


def request_id(request: HTTPConnection) -> str:
    """The client's own id if it is short and harmless, for the answer's header only; otherwise a fresh one."""
    given = request.headers.get("x-request-id", "")
    return given if _SAFE_ID.fullmatch(given) else f"req-{uuid.uuid4().hex}"


async def read_body(request: Request) -> bytes:
    """The whole body; refused as soon as it is known to be too large, or if it takes too long to come."""
    service = service_of(request)
    limits = service.limits
    most = int(limits.body_mib * (1 << 20))
    if int(request.headers.get("content-length", "0") or 0) > most:
        raise _too_large(limits.body_mib)
    parts, size = [], 0
    try:
        with service.stopping.given_up(), anyio.fail_after(limits.body_timeout_s):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise _too_large(limits.body_mib)
                parts.append(part)
    except TimeoutError:
        raise RequestError("the body took too long to arrive", status=408, code="request_timeout") from None
    except ClientDisconnect:
        raise ClientGone from None
    return b"".join(parts)


def _too_large(mib: float) -> RequestError:
    return RequestError(f"the body is larger than {mib:g} MiB", status=413, code="request_too_large")
