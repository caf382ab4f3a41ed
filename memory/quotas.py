"""Quotas of tenants: how many pages that nobody holds one tenant's requests may keep while others need room.

A quota takes nothing away as long as there is room.  When pages are to be given up, those of a tenant who keeps more
than its quota go first, in the order of the allocator; tenants without a quota are as one.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heapify, heappop, heappush
from typing import Protocol

from stepwell.core.types import Page


class Kept(Protocol):
    """A findable page; ``owner`` is the tenant who computed it, empty: one without a quota."""

    owner: str
    page: Page
    stamp: int
    worth: int


class Quotas:
    """``most`` idle pages by tenant, and ``idle``, how many there are."""

    def __init__(self, most: Mapping[str, int]) -> None:
        self.most = dict(most)
        self.idle = dict.fromkeys(most, 0)
        # Idle leaves as (worth, stamp, page), and some that are neither any more.
        self._lines: dict[str, list[tuple[int, int, Page]]] = {tenant: [] for tenant in most}

    def owner(self, tenant: str) -> str:
        """What to call the tenant of a page."""
        return tenant if tenant in self.most else ""

    def line_up(self, it: Kept, by_page: Mapping[Page, Kept]) -> None:
        """Nothing builds on it any more, and nobody holds it."""
        if it.owner:
            line = self._lines[it.owner]
            if len(line) > 2 * self.idle[it.owner] + 64:
                line[:] = [each for each in line if _stands(each, by_page)]
                heapify(line)
            heappush(line, (it.worth, it.stamp, it.page))

    def next(self, by_page: Mapping[Page, Kept]) -> Page | None:
        """The page to give up first, of somebody who keeps too much; None if nobody does."""
        for tenant, most in self.most.items():
            line = self._lines[tenant]
            while self.idle[tenant] > most and line:
                first = heappop(line)
                if _stands(first, by_page):
                    return first[2]
        return None

    def clear(self) -> None:
        """Nothing is kept."""
        for tenant, line in self._lines.items():
            line.clear()
            self.idle[tenant] = 0


def _stands(each: tuple[int, int, Page], by_page: Mapping[Page, Kept]) -> bool:
    it = by_page.get(each[2])
    return it is not None and it.stamp == each[1]
