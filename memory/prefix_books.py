"""The books of ``memory.prefix``: what a snapshot of them holds, and whether they agree with each other."""

from __future__ import annotations

import msgspec

from stepwell.core.errors import InvariantError
from stepwell.core.types import Page, RequestId, StepId
from stepwell.memory import audit
from stepwell.memory.audit import Place
from stepwell.memory.host import HostState
from stepwell.memory.prefix_index import IndexState, PrefixIndex
from stepwell.memory.snapshot import Pages, Shape, StepRow, TableRow


class PrefixState(msgspec.Struct, forbid_unknown_fields=True):
    """A snapshot.  ``done`` is the last step done; pairs as in ``Prefix``."""

    shape: Shape
    done: StepId
    blank: Pages
    returning: list[StepRow]
    waiting: list[tuple[Page, StepId]]
    tables: list[TableRow]
    leading: list[tuple[RequestId, int]]
    owners: list[tuple[Page, int]]
    late: list[tuple[Page, StepId]]
    index: IndexState
    host: HostState


def check_books(state: PrefixState, index: PrefixIndex, returning: list[Place]) -> None:
    """Raise ``InvariantError`` unless each page is in one place, or in as many tables as counted; O(pages)."""
    index.check()
    idle = [page for page, entry in index.by_page.items() if entry.stamp]
    waiting = dict(state.waiting)
    places: list[Place] = [("the blank pages", state.blank), ("the idle pages", idle), *returning]
    places.append(("the findable pages that wait", list(waiting)))
    leading = dict(state.leading)
    stored = {request for request, _, _ in state.host.stored}
    owners: dict[Page, int] = {}
    for request, table in state.tables:
        if request in stored:
            raise InvariantError(f"request {request} is both on the device and in the host tier")
        if len(set(table)) < len(table):
            raise InvariantError(f"the table of request {request} names a page twice: {table}")
        count = leading.pop(request, 0)
        if not 0 <= count <= len(table):
            raise InvariantError(f"request {request} is said to share {count} of {len(table)} pages")
        first = [page for page in table[:count] if page not in owners]
        for page in table[:count]:
            owners[page] = owners.get(page, 0) + 1
        _check_places(index, request, table, count)
        places.append((f"the table of request {request}", first + table[count:]))
    audit.partition("page", state.shape.pages, places)
    if leading:
        raise InvariantError(f"requests {list(leading)} are said to share pages, but have none")
    if owners != dict(state.owners):
        raise InvariantError(f"leading pages are held by {owners}, but the counts say {state.owners}")
    for page, step in state.late:
        if page not in owners:
            raise InvariantError(f"page {page} waits for step {step}, but no request shares it")
    for page, entry in index.by_page.items():
        if not entry.stamp and page not in owners and waiting.get(page, 0) <= state.done:
            raise InvariantError(f"page {page} is findable, neither held nor idle, and waits for nothing")
    for page in waiting:
        if page not in index.by_page:
            raise InvariantError(f"page {page} waits to be findable, but is not")


def _check_places(index: PrefixIndex, request: RequestId, table: Pages, leading: int) -> None:
    """A findable page is among the leading ones, at its own place, behind the page that it builds on."""
    for place, page in enumerate(table):
        entry = index.by_page.get(page)
        if entry is None:
            continue
        before = entry.parent.page if entry.parent is not None else None
        if place >= leading or entry.depth != place or before != (table[place - 1] if place else None):
            raise InvariantError(f"page {page} of request {request} is findable at another place: {table}")
