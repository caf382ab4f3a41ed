"""``[responses]``: what is kept of responses, for how long, and what a WebSocket may take."""

from __future__ import annotations

from typing import Annotated

import msgspec

Waits = Annotated[float, msgspec.Meta(gt=0, le=86_400)]


class ResponsesConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Of ``/v1/responses``, over HTTP and WebSockets."""

    keep: Annotated[int, msgspec.Meta(ge=0, le=10_000_000)] = 10_000
    """Responses that ended and can be asked for again, at most; the oldest of who holds most goes first."""
    keep_mib: Annotated[float, msgspec.Meta(ge=0, le=1 << 20)] = 128.0
    """What they take together in memory, at most."""
    stored_mib: Annotated[float, msgspec.Meta(ge=0, le=1 << 24)] = 1024.0
    """What they take in the file that ``store.path`` names, at most: there they outlive the process."""
    keep_hours: Annotated[float, msgspec.Meta(gt=0, le=87_600)] = 24.0
    """Since they ended, or a later response went on from them."""
    events_kib: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] = 1024
    """Events of one response, so that a stream can be taken up again; with more, the first ones are gone."""
    hold_s: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 30.0
    """A streamed response of which the client said ``store: true`` goes on for so long when its connection is lost."""
    queue_update_s: Annotated[float, msgspec.Meta(ge=0.05, le=3600)] = 1.0
    """A response that waits in line is told a new position so often, at most."""
    max_sockets: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 16_384
    """WebSockets open at once."""
    tenant_sockets: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    """Those of one tenant; 0: as many as there may be."""
    idle_s: Waits = 600.0
    """A WebSocket on which nothing was said for so long, and nothing is in progress, is closed."""
