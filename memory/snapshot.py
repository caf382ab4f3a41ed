"""Writing an allocator's state as JSON-like data, and taking it over again, all or nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec

from stepwell.core.errors import InvariantError, UserError
from stepwell.core.types import Page, RequestId, StepId

Pages = list[Page]
TableRow = tuple[RequestId, Pages]
StepRow = tuple[StepId, list[Pages]]
"""(step that is waited for, runs of pages)."""


class Shape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a snapshot and the allocator that loads it must agree on; ``page_size`` in tokens."""

    allocator: str
    pages: int
    page_size: int
    host_pages: int

    def __post_init__(self) -> None:
        if self.pages < 1:
            raise UserError(f"a pool needs at least one page, not {self.pages}", field="pages")
        if self.page_size < 1:
            raise UserError(f"a page holds at least one token, not {self.page_size}", field="page_size")
        if self.host_pages < 0:
            raise UserError(f"a host tier has 0 pages or more, not {self.host_pages}", field="host_pages")


class BlankState(msgspec.Struct, forbid_unknown_fields=True):
    """Of ``BlankPages``: ``done`` is the last step done."""

    done: StepId
    free: Pages
    returning: list[StepRow]


class HostState(msgspec.Struct, forbid_unknown_fields=True):
    """Of ``HostTier``: ``stored`` rows are (request, step that writes the pages, pages)."""

    free: Pages
    returning: list[StepRow]
    stored: list[tuple[RequestId, StepId, Pages]]


class TablesState(msgspec.Struct, forbid_unknown_fields=True):
    """Of ``PageTables``: pairs as there and in ``Holders``."""

    tables: list[TableRow]
    leading: list[tuple[RequestId, int]]
    holders: list[tuple[Page, int]]
    late: list[tuple[Page, StepId]]
    host: HostState


class State(Protocol):
    """A snapshot: a struct whose ``shape`` says of what."""

    @property
    def shape(self) -> Shape: ...


S = TypeVar("S", bound=State)


def encode(state: State) -> object:
    """``state`` as lists, dictionaries with string keys, and integers; shares nothing with it."""
    data: object = msgspec.json.decode(msgspec.json.encode(state))
    return data


def take_over(data: object, kind: type[S], current: S, restore: Callable[[S], None], check: Callable[[], None]) -> None:
    """Read ``data`` as a ``kind``, ``restore`` it and ``check``; on any fault go back to ``current``.

    Raises ``UserError`` (field ``allocator``) if the data have the wrong form, are of another pool, or break a law.
    """
    try:
        state = msgspec.convert(data, kind)
    except (msgspec.ValidationError, UserError) as error:
        raise UserError(f"not a snapshot of this allocator: {error}", field="allocator") from error
    if state.shape != current.shape:
        raise UserError(f"a snapshot of {state.shape}, but this is {current.shape}", field="allocator")
    try:
        restore(state)
        check()
    except InvariantError as error:
        restore(current)
        raise UserError(f"the snapshot contradicts itself: {error}", field="allocator") from error
