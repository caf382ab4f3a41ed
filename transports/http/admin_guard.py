"""Who may operate a server: whoever shows a token, or, where there is none, whoever is on this machine."""

from __future__ import annotations

import ipaddress
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from stepwell.core.config_admin import AdminConfig
from stepwell.core.errors import UserError
from stepwell.transports.errors import RequestError
from stepwell.transports.gateway.digests import digest_of
from stepwell.transports.gateway.guards import GUARDED, Guard

Answer = Callable[[Request], Awaitable[Response]]

PREFIX = "/admin"
MOST_FILE = 4096
"""Bytes of a file with a token."""

_PASSED_ON = ("origin", "forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via")
"""Headers of web pages and proxies."""


def admin_guards(config: AdminConfig, tokens: Sequence[str] = ()) -> tuple[Guard, ...]:
    """The guard of all admin routes.  ``tokens`` open them beside those that the configuration knows.

    Raises ``UserError`` if the file of a token cannot be read, or holds none.
    """
    given = [*tokens, *([_token_in(config.token_file)] if config.token_file else [])]
    return (Guard(PREFIX, (*config.digests, *(digest_of(each.encode()) for each in given))),)


def _token_in(name: str) -> str:
    try:
        with Path(name).open("rb") as file:
            token = file.read(MOST_FILE).decode("ascii").partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", "") or "it is no plain text"
        raise UserError(f"cannot read a token from {name}: {why}", field="admin.token_file") from None
    if not token:
        raise UserError(f"the first line of {name} is empty: there is no token in it", field="admin.token_file")
    return token


def guarded(answer: Answer) -> Answer:
    """Only for whoever showed the token; where none is configured, who is on this machine and speaks for himself."""

    async def guard(request: Request) -> Response:
        if GUARDED not in request.scope and not _local(request):
            raise RequestError(
                "without a token (admin.digests) admin routes answer on this machine only: ask http://127.0.0.1, not"
                " through a proxy or a web page",
                status=403,
                code="admin_local_only",
            )
        return await answer(request)

    return guard


def _local(request: Request) -> bool:
    host = request.client.host if request.client is not None else ""
    passed_on = any(name in request.headers for name in _PASSED_ON)
    return not passed_on and _loopback(host) and _loopback(request.url.hostname or "")


def _loopback(host: str) -> bool:
    """Whether an address, or the name in ``Host``, is that of the machine itself."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
