"""What the caller of an allocator owes it.  Each function raises ``InvariantError`` when a duty is broken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from stepwell.core.errors import InvariantError
from stepwell.core.types import Page, RequestId

Table = TypeVar("Table", bound=Sequence[Page])


def within_limit(request: RequestId, tokens: int, limit: int) -> None:
    """A request asks for at least one token and never for more than its limit."""
    if not 1 <= tokens <= limit:
        raise InvariantError(f"request {request} asks for {tokens} tokens with a limit of {limit}")


def table_of(request: RequestId, tables: Mapping[RequestId, Table]) -> Table:
    """The table of a request that must have one."""
    table = tables.get(request)
    if table is None:
        raise InvariantError(f"request {request} has no page table")
    return table


def absent(request: RequestId, tables: Mapping[RequestId, Table], stored: Mapping[RequestId, list[Page]]) -> None:
    """A request that is to get a table has neither one nor pages in the host tier."""
    if request in tables or request in stored:
        where = "has a page table already" if request in tables else "is swapped out: swap it in or free it first"
        raise InvariantError(f"request {request} {where}")


def holds(request: RequestId, capacity: int, tokens: int, at_least: int = 0) -> None:
    """``tokens`` lie in a table that holds ``capacity`` of them."""
    if not at_least <= tokens <= capacity:
        raise InvariantError(f"the table of request {request} holds {capacity} tokens, not {tokens}")


def forks(
    parent: RequestId,
    child: RequestId,
    tables: Mapping[RequestId, Table],
    stored: Mapping[RequestId, list[Page]],
    page_size: int,
    shared: int,
    tokens: int,
    limit: int,
) -> Table:
    """The table of a parent that holds ``shared`` tokens, for a new child that asks for no fewer."""
    table = table_of(parent, tables)
    absent(child, tables, stored)
    within_limit(child, tokens, limit)
    holds(parent, len(table) * page_size, shared, at_least=1)
    if shared > tokens:
        raise InvariantError(f"request {child} is to share {shared} tokens and asks for {tokens}")
    return table


def known_length(request: RequestId, tokens: int) -> None:
    """Nobody shrinks below nothing."""
    if tokens < 0:
        raise InvariantError(f"request {request} cannot shrink to {tokens} tokens")
