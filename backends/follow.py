"""Brings a backend's mirror of requests, tables and decode group up to date with a launch, and makes its copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from stepwell.backends.batch import Row
from stepwell.backends.device.swap import touched
from stepwell.backends.kv_cache import KVCache
from stepwell.core.instructions import Launch
from stepwell.core.types import Page, RequestId


class Group(Protocol):
    """The requests that decode together, wherever their columns lie."""

    rows: list[Row]

    def join(self, row: Row) -> None: ...
    def leave(self, id: RequestId) -> None: ...
    def member(self, id: RequestId) -> Row | None: ...
    def grow(self, row: Row) -> None: ...
    def clear(self) -> None: ...


def follow(batch: Launch, rows: Mapping[RequestId, Row], group: Group, cache: KVCache) -> None:
    """Whatever is computed after it may use every page that the step names."""
    if batch.swap_out:
        cache.swap_out(batch.swap_out)
    if batch.swap_in:
        cache.swap_in(batch.swap_in)
    if batch.copies:
        cache.copy(batch.copies)
    for id in batch.left:
        group.leave(id)
    for id, table in batch.tables:
        if id in rows:
            rows[id].table = list(table)
    flat = iter(batch.growth)
    for id, page in zip(flat, flat, strict=True):
        row = rows.get(id) or group.member(id)  # one that ended computes on until a launch says that it left
        if row is not None:
            row.table.append(page)
            group.grow(row)
    for id in batch.joined:
        if id in rows:  # otherwise it ended between sampling and joining; the next launch takes it out again
            group.join(rows[id])

    def table_of(id: RequestId) -> Sequence[Page]:
        row = rows.get(id)
        return () if row is None else row.table

    cache.settle(touched(batch, table_of))
