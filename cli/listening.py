"""A port of this machine, taken before anything slow is done for it."""

from __future__ import annotations

import socket

from stepwell.core.errors import UserError


def bound(host: str, port: int, field: str) -> socket.socket:
    """Bound and not yet open.  Raises ``UserError``, at ``field`` of the configuration, if it cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise UserError(f"cannot listen at {host}:{port}: {error.strerror or error}", field=field) from None
    return listener
