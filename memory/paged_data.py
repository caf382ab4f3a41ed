"""What configures ``memory.paged`` and what a snapshot of it holds: structs, which a compiled module may not define."""

from __future__ import annotations

import msgspec

from stepwell.memory.snapshot import BlankState, Shape, TablesState


class PagedOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """There is nothing to choose."""


class PagedState(msgspec.Struct, forbid_unknown_fields=True):
    """A snapshot."""

    shape: Shape
    pool: BlankState
    tables: TablesState
