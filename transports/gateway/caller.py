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


def on_behalf_of(tenant: str) -> dict[str, str]:
    """Headers for work that the server does later for a tenant (lines of a batch): of any class, by no key."""
    return {HEADER: _TENANT + tenant}


def key_in(headers: Mapping[str, str]) -> str:
    """The name of the key that was shown; empty if none was."""
    value = headers.get(HEADER, "")
    return value.removeprefix(_KEY) if value.startswith(_KEY) else ""


def tenant_in(headers: Mapping[str, str]) -> str:
    """The tenant for whom the server itself does this; empty if a client asks."""
    value = headers.get(HEADER, "")
    return value.removeprefix(_TENANT) if value.startswith(_TENANT) else ""
