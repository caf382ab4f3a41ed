"""Who asks, for whatever is behind the gate: said in a header that the gate writes, and takes away from clients.

So it goes wherever the headers of a request go (into a WebSocket's lanes, for one), and needs no argument of its own.
"""

from __future__ import annotations

from collections.abc import Mapping

HEADER = "x-stepwell-caller"
RAW = HEADER.encode()

_KEY, _TENANT = "key ", "tenant "


def by_key(name: str) -> str:
    """The header's value for whoever showed the key of that name."""
    return _KEY + name


def on_behalf_of(tenant: str, klass: str = "") -> dict[str, str]:
    """Headers for work that the server does later for a tenant (lines of a batch): of any class, by no key.

    ``klass``: of that class, whatever the request says.
    """
    return {HEADER: f"{_TENANT}{tenant} {klass}".rstrip()}


def key_in(headers: Mapping[str, str]) -> str:
    """The name of the key that was shown; empty if none was."""
    value = headers.get(HEADER, "")
    return value.removeprefix(_KEY) if value.startswith(_KEY) else ""


def tenant_in(headers: Mapping[str, str]) -> str:
    """The tenant for whom the server itself does this; empty if a client asks."""
    return _work_in(headers)[0]


def class_in(headers: Mapping[str, str]) -> str:
    """The class that the server's own work is of; empty if it does not say, or a client asks."""
    return _work_in(headers)[2]


def _work_in(headers: Mapping[str, str]) -> tuple[str, str, str]:
    value = headers.get(HEADER, "")
    return value.removeprefix(_TENANT).partition(" ") if value.startswith(_TENANT) else ("", "", "")
