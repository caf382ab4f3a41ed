"""``[store]``: where files, batches and their results are kept, and how much of it."""

from __future__ import annotations

from typing import Annotated

import msgspec

MOST_LINES = 1 << 20
"""Of one file: the store numbers results by batch and line in one integer."""

Window = Annotated[str, msgspec.Meta(pattern=r"^[1-9][0-9]{0,3}[mhd]\Z")]
"""Minutes, hours or days: ``30m``, ``24h``, ``7d``."""
_SECONDS = {"m": 60, "h": 3600, "d": 86_400}


def window_s(window: str) -> int:
    """Seconds in a ``Window``."""
    return int(window[:-1]) * _SECONDS[window[-1]]


class StoreConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The file that outlives the process, its bounds, and how batches are run from it."""

    path: str = ""
    """The SQLite file; made, readable by its owner only, if it is not there.  Empty: nothing is kept, and the routes
    that would keep something say so."""
    total_mib: Annotated[int, msgspec.Meta(ge=1, le=1 << 24)] = 8192
    """Size of that file, at most; what does not fit is refused, and batches wait until there is room."""
    tenant_mib: Annotated[int, msgspec.Meta(ge=1, le=1 << 24)] = 2048
    """Files and results of one tenant, at most."""
    tenant_files: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 10_000
    """Files of one tenant, at most."""
    tenant_batches: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 32
    """Unfinished batches of one tenant, at most."""
    file_mb: Annotated[float, msgspec.Meta(gt=0, le=10_000)] = 200.0
    """Size of an uploaded file in millions of bytes, at most."""
    file_lines: Annotated[int, msgspec.Meta(ge=1, le=MOST_LINES)] = 50_000
    """Requests in one batch, at most."""
    file_days: Annotated[float, msgspec.Meta(gt=0, le=3650)] = 30.0
    """Age at which a file goes, unless it was uploaded with one of its own; and a batch, after its end."""
    uploads: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 16
    """Uploads in progress, at most; each takes a few hundred KiB of memory."""
    windows: Annotated[tuple[Window, ...], msgspec.Meta(min_length=1, max_length=64)] = ("24h",)
    """What ``completion_window`` may be."""
    batch_class: Annotated[str, msgspec.Meta(min_length=1)] = "(last)"
    """The class that the lines of batches are served as: a name, ``(first)`` or ``(last)``."""
    lines_in_flight: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 64
    """Lines of all batches that wait for the engine or run, at most; fewer while the engine refuses some."""
