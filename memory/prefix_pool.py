"""The pool of allocators that reuse prefixes: blank pages, and findable ones that nobody holds, given up when those run
out."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Generic, Protocol, TypeVar

import msgspec

from stepwell.core.errors import InvariantError
from stepwell.core.types import Page, StepId
from stepwell.memory.audit import Place
from stepwell.memory.holders import Holders
from stepwell.memory.pool import BlankPages
from stepwell.memory.prefix_index import PrefixIndex
from stepwell.memory.snapshot import BlankState, Pages
from stepwell.memory.tables import PageTables

Where = TypeVar("Where")
"""What an index says of a page."""


class PageIndex(Protocol[Where]):
    """What is findable.  ``by_page`` says where a page is in it, ``idle`` counts the pages that nobody holds."""

    by_page: dict[Page, Where]
    idle: int

    def release(self, where: Where) -> None:
        """Nobody holds the page that is there any more.  Pages are released before those that they build on."""
        ...

    def evict(self, count: int) -> list[Page]:
        """Give up ``count`` idle pages, there must be as many; in the order in which they went."""
        ...

    def clear(self) -> list[Page]:
        """Forget everything; returns the pages that were idle."""
        ...

    def idle_pages(self) -> list[Page]: ...
    def check(self) -> None: ...


class PrefixPoolState(msgspec.Struct, forbid_unknown_fields=True):
    """A snapshot: ``waiting`` as in ``PrefixPool``."""

    blank: BlankState
    waiting: list[tuple[Page, StepId]]


class PrefixPool(Generic[Where]):
    """A ``PagePool`` that keeps what ``index`` knows.  ``waiting`` are findable pages that nobody holds, and the step
    in flight that they wait for before they are idle."""

    def __init__(self, pages: int, index: PageIndex[Where]) -> None:
        self.index = index
        self.waiting: dict[Page, StepId] = {}
        self.blank = BlankPages(pages)

    @property
    def free_pages(self) -> int:
        return self.blank.free_pages + self.index.idle

    @property
    def returning_pages(self) -> int:
        return self.blank.returning.pages + len(self.waiting)

    @property
    def done(self) -> StepId:
        return self.blank.returning.done

    def take(self, count: int) -> list[Page]:
        """Blank pages first."""
        blank = self.blank
        short = count - blank.free_pages
        if short <= 0:
            return blank.take(count)
        evicted = self.index.evict(short)
        evicted.reverse()
        return evicted + blank.take(count - short)

    def give(self, pages: list[Page], after: StepId) -> None:
        self.blank.give(pages, after)

    def keep(self, pages: list[Page], until: StepId) -> list[Page]:
        """Those that are findable."""
        by_page, release, waits = self.index.by_page, self.index.release, until > self.blank.returning.done
        others: list[Page] = []
        for page in pages:
            entry = by_page.get(page)
            if entry is None:
                others.append(page)
            elif waits:
                self.waiting[page] = until
            else:
                release(entry)
        return others

    def join(self, pages: list[Page], holders: Holders) -> int:
        """Somebody holds ``pages``, which are findable; how many of them others hold, too."""
        counts, shared = holders.counts, 0
        for page in pages:
            if page in counts:
                counts[page] += 1
                shared += 1
            else:
                counts[page] = 1
                if until := self.unwait(page):
                    holders.late[page] = until
        return shared

    def unwait(self, page: Page) -> StepId:
        """Somebody holds a page that was kept; returns the step that it waited for, 0 if none."""
        return self.waiting.pop(page, 0)

    def step_done(self, step: StepId) -> None:
        """``InvariantError`` if ``step`` is before one already reported."""
        self.blank.step_done(step)
        if self.waiting:
            for page in [page for page, until in self.waiting.items() if until <= step]:
                del self.waiting[page]
                self.index.release(self.index.by_page[page])

    def forget(self) -> int:
        """What was kept is blank from here on, and nothing is findable; returns how many pages that were."""
        idle = self.index.clear()
        kept = len(idle) + len(self.waiting)
        self.blank.give(idle, 0)
        for page, until in self.waiting.items():
            self.blank.give([page], until)
        self.waiting.clear()
        return kept

    # ---------------------------------------------------------------------------------------- snapshot and audit

    def state(self) -> PrefixPoolState:
        """The state as it is, sharing its lists: encode it before anything changes."""
        return PrefixPoolState(self.blank.state(), list(self.waiting.items()))

    def restore(self, state: PrefixPoolState) -> None:
        """Become ``state``; whoever audits ``places`` says whether it makes sense."""
        self.blank.restore(state.blank)
        self.waiting = dict(state.waiting)

    def places(self) -> list[Place]:
        """For ``audit.partition``; raises ``InvariantError`` if the index contradicts itself or a page is overdue."""
        self.index.check()
        for page, until in self.waiting.items():
            if page not in self.index.by_page or until <= self.done:
                raise InvariantError(f"page {page} waits for step {until} to be idle, but need not")
        idle = ("the idle pages", self.index.idle_pages())
        return [*self.blank.places(), idle, ("the findable pages that wait", list(self.waiting))]


def check_findable(index: PrefixIndex, tables: PageTables) -> None:
    """Raise ``InvariantError`` unless each findable page in a table is among the leading ones, at its own place, behind
    the page that it builds on; O(pages)."""
    for request, table in tables.by_request.items():
        leading = tables.leading.get(request, 0)
        for place, page, before in _places(table):
            entry = index.by_page.get(page)
            if entry is None:
                continue
            builds_on = entry.parent.page if entry.parent is not None else None
            if place >= leading or entry.depth != place or builds_on != before:
                raise InvariantError(f"page {page} of request {request} is findable at another place: {table}")


def _places(table: Pages) -> Iterable[tuple[int, Page, Page | None]]:
    return zip(range(len(table)), table, chain([None], table), strict=False)
