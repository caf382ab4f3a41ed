"""The map from page keys to the pages that hold their content, and the order in which they are given up.

Entries form trees: a page of a prompt builds on the page before it.  A parent is entered before its children and leaves
after them, so a known key means that all keys before it are known too, and the longest known prefix is found by
bisection.  An entry is *idle* while no request holds its page: then the page may be evicted, if it is a leaf.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

import msgspec

from stepwell.core.errors import InvariantError
from stepwell.core.types import Page
from stepwell.memory.eviction import Worth
from stepwell.memory.quotas import Quotas

NO_PAGE: Page = -1

PINNED = 1 << 62
"""More than any page is worth that is not pinned."""

EntryRow = tuple[Page, Page, int, int, int, int, int, str]
"""(page, its parent's page or ``NO_PAGE``, key, uses, born, stamp, worth, owner)."""


class IndexState(msgspec.Struct, forbid_unknown_fields=True):
    """A snapshot: ``entries`` in order of entry, so parents before children."""

    clock: int
    floor: int
    entries: list[EntryRow]
    pins: list[list[int]]


class Entry:
    """A findable page.  ``stamp`` says when it became idle, 0: it is not; ``worth`` is its place in line, before
    it is a leaf that of the page evicted last when it became idle."""

    __slots__ = ("born", "children", "depth", "key", "owner", "page", "parent", "stamp", "uses", "worth")

    def __init__(self, key: int, page: Page, parent: Entry | None, born: int, owner: str) -> None:
        self.key = key
        self.page = page
        self.parent = parent
        self.depth: int = parent.depth + 1 if parent is not None else 0
        self.children = 0
        self.uses = 0
        self.born = born
        self.owner = owner
        self.stamp = 0
        self.worth = 0


class PrefixIndex:
    """See the module.  ``by_key`` and ``by_page`` hold the same entries (read them, don't write); ``idle`` counts."""

    def __init__(self, worth: Worth, quotas: Quotas | None = None) -> None:
        self.by_key: dict[int, Entry] = {}
        self.by_page: dict[Page, Entry] = {}
        self.idle = 0
        # Pins by their last keys, which stand for all before them; and how many of them each key is in.
        self._pins: dict[int, list[int]] = {}
        self.pinned: dict[int, int] = {}
        self._worth = worth
        self._quotas = quotas or Quotas({})
        self._limited = bool(self._quotas.most)
        self._clock = 0
        self._floor = 0
        # Idle leaves as (worth, stamp, page), and some that are neither any more.
        self._line: list[tuple[int, int, Page]] = []

    def find(self, keys: Sequence[int], most: int) -> Entry | None:
        """The last page of the longest known prefix of ``keys``, of ``most`` pages at most; O(log pages)."""
        by_key = self.by_key
        low, high = 0, min(len(keys), most)
        found = None
        if high <= 0 or keys[0] not in by_key:
            return None
        while low < high:
            middle = (low + high) // 2
            entry = by_key.get(keys[middle])
            if entry is not None and entry.depth == middle:
                found = entry
                low = middle + 1
            else:
                high = middle
        return found

    def add(
        self,
        keys: Sequence[int],
        pages: Sequence[Page],
        parent: Entry | None,
        holders: dict[Page, int],
        tenant: str = "",
    ) -> int:
        """Enter pages that somebody holds, one behind the other, up to the first whose key is known; how many were.

        ``holders`` counts who holds findable pages, so from now on these, too.
        """
        owner = self._quotas.owner(tenant)
        by_key, by_page, clock = self.by_key, self.by_page, self._clock
        for key, page in zip(keys, pages, strict=True):
            if key in by_key:
                break
            clock += 1
            entry = by_key[key] = by_page[page] = Entry(key, page, parent, clock, owner)
            if parent is not None:
                parent.children += 1
            parent = entry
            holders.setdefault(page, 1)
        added, self._clock = clock - self._clock, clock
        return added

    def release(self, entry: Entry) -> None:
        """Nobody holds it any more.  Children are released before their parents."""
        self._clock += 1
        self.idle += 1
        if entry.owner:
            self._quotas.idle[entry.owner] += 1
        entry.stamp, entry.worth = self._clock, self._floor
        if not entry.children:
            self._line_up(entry)

    def hold(self, last: Entry) -> list[Page]:
        """Somebody found ``last`` and the pages before it, and holds them from here on; returns them in order."""
        pages: list[Page] = []
        entry: Entry | None = last
        while entry is not None:
            entry.uses += 1
            if entry.stamp:
                self.idle -= 1
                if entry.owner:
                    self._quotas.idle[entry.owner] -= 1
                entry.stamp = 0
            pages.append(entry.page)
            entry = entry.parent
        pages.reverse()
        return pages

    def pin(self, keys: Sequence[int]) -> None:
        """Pages with these keys, known or not yet, go after all others; the same keys again are the same pin."""
        if not keys or keys[-1] in self._pins:
            return
        self._pins[keys[-1]] = list(keys)
        for key in keys:
            self.pinned[key] = self.pinned.get(key, 0) + 1
        self._rank_anew(keys)

    def unpin(self, keys: Sequence[int]) -> None:
        """Those that are in no other pin go in their turn; harmless for what is no pin."""
        if not keys or self._pins.pop(keys[-1], None) is None:
            return
        for key in keys:
            self.pinned[key] -= 1
            if not self.pinned[key]:
                del self.pinned[key]
        self._rank_anew([key for key in keys if key not in self.pinned])

    def _rank_anew(self, keys: Sequence[int]) -> None:
        """As if nobody held them since just now; children before parents."""
        for key in reversed(keys):
            entry = self.by_key.get(key)
            if entry is not None and entry.stamp:
                self._clock += 1
                entry.stamp, entry.worth = self._clock, self._floor
                if not entry.children:
                    self._line_up(entry)

    def _rank(self, entry: Entry) -> int:
        return PINNED if entry.key in self.pinned else self._worth(entry, entry.worth)

    def evict(self, count: int) -> list[Page]:
        """Give up ``count`` idle pages, there must be as many; in the order in which they went."""
        pages: list[Page] = []
        line, by_key, by_page, rank = self._line, self.by_key, self.by_page, self._rank
        entry: Entry | None = None
        while len(pages) < count:
            if self._limited and (first := self._quotas.next(by_page)) is not None:
                if entry is not None:
                    heappush(line, (entry.worth, entry.stamp, entry.page))
                entry = by_page[first]
            if entry is None:
                _, stamp, page = heappop(line)
                entry = by_page.get(page)
                if entry is None or entry.stamp != stamp:
                    entry = None
                    continue
            if entry.owner:
                self._quotas.idle[entry.owner] -= 1
            if entry.worth < PINNED:
                self._floor = entry.worth
            del by_key[entry.key], by_page[entry.page]
            pages.append(entry.page)
            parent, entry = entry.parent, None
            if parent is not None:
                parent.children -= 1
                if parent.stamp and not parent.children:
                    parent.worth = rank(parent)
                    after = parent.worth, parent.stamp, parent.page
                    if parent.owner:
                        self._quotas.line_up(parent, by_page)
                    if line and line[0] < after:
                        heappush(line, after)
                    else:
                        entry = parent  # mostly the next to go, and then never in the line
        if entry is not None:
            heappush(line, (entry.worth, entry.stamp, entry.page))
        self.idle -= count
        return pages

    def clear(self) -> list[Page]:
        """Forget everything; returns the pages that were idle."""
        pages = [entry.page for entry in self.by_key.values() if entry.stamp]
        self.by_key.clear()
        self.by_page.clear()
        self._line.clear()
        self._quotas.clear()
        self.idle = 0
        return pages

    def _line_up(self, entry: Entry) -> None:
        if len(self._line) > 2 * self.idle + 64:
            self._line_up_afresh()
        entry.worth = self._rank(entry)
        heappush(self._line, (entry.worth, entry.stamp, entry.page))
        if entry.owner:
            self._quotas.line_up(entry, self.by_page)

    def _line_up_afresh(self) -> None:
        by_page = self.by_page
        self._line = [
            each for each in self._line if (entry := by_page.get(each[2])) is not None and entry.stamp == each[1]
        ]
        heapify(self._line)

    # ---------------------------------------------------------------------------------------- snapshot and audit

    def idle_pages(self) -> list[Page]:
        return [page for page, entry in self.by_page.items() if entry.stamp]

    def state(self) -> IndexState:
        """The state as it is; its line follows from the entries."""
        rows = [
            (it.page, it.parent.page if it.parent else NO_PAGE, it.key, it.uses, it.born, it.stamp, it.worth, it.owner)
            for it in self.by_key.values()
        ]
        return IndexState(self._clock, self._floor, rows, list(self._pins.values()))

    def restore(self, state: IndexState) -> None:
        """Become ``state``; ``InvariantError`` if its entries do not form trees."""
        self.clear()
        self._clock, self._floor = state.clock, state.floor
        self._pins.clear()
        self.pinned.clear()
        for keys in state.pins:
            self.pin(keys)
        for page, before, key, uses, born, stamp, worth, owner in state.entries:
            parent = self.by_page.get(before)
            if (parent is None) != (before == NO_PAGE):
                raise InvariantError(f"page {page} builds on page {before}, which is not findable")
            if key in self.by_key or page in self.by_page:
                raise InvariantError(f"page {page} or key {key} is findable twice")
            entry = self.by_key[key] = self.by_page[page] = Entry(key, page, parent, born, owner)
            entry.uses, entry.stamp, entry.worth = uses, stamp, worth
            if parent is not None:
                parent.children += 1
        leaves = [entry for entry in self.by_key.values() if entry.stamp]
        self.idle = len(leaves)
        self._line = [(entry.worth, entry.stamp, entry.page) for entry in leaves if not entry.children]
        heapify(self._line)
        for entry in leaves:
            if entry.owner:
                if entry.owner not in self._quotas.most:
                    raise InvariantError(f"page {entry.page} is of {entry.owner!r}, who has no quota")
                self._quotas.idle[entry.owner] += 1
                if not entry.children:
                    self._quotas.line_up(entry, self.by_page)

    def check(self) -> None:
        """Raise ``InvariantError`` unless parents are known wherever children are, and idle only where these are."""
        children: dict[int, int] = {}
        idle = 0
        for key, entry in self.by_key.items():
            if entry.key != key or self.by_page.get(entry.page) is not entry:
                raise InvariantError(f"key {key} and page {entry.page} do not find each other")
            parent = entry.parent
            if entry.depth != (parent.depth + 1 if parent is not None else 0) or not 0 <= entry.stamp <= self._clock:
                raise InvariantError(f"the entry of page {entry.page} has depth {entry.depth}, stamp {entry.stamp}")
            idle += entry.stamp > 0
            if parent is not None:
                children[parent.key] = children.get(parent.key, 0) + 1
                if self.by_key.get(parent.key) is not parent:
                    raise InvariantError(f"page {entry.page} is findable, but page {parent.page} before it is not")
                if parent.stamp and not entry.stamp:
                    raise InvariantError(f"page {parent.page} is idle, but page {entry.page} builds on it and is not")
        if (idle, len(self.by_key)) != (self.idle, len(self.by_page)):
            raise InvariantError(f"{idle} of {len(self.by_key)} entries are idle, but the count says {self.idle}")
        for tenant, counted in self._quotas.idle.items():
            if counted != sum(it.stamp > 0 for it in self.by_key.values() if it.owner == tenant):
                raise InvariantError(f"{counted} idle pages are said to be of {tenant!r}")
        lined_up = {page for _, stamp, page in self._line if page in self.by_page and self.by_page[page].stamp == stamp}
        for key, entry in self.by_key.items():
            if entry.children != children.get(key, 0):
                raise InvariantError(f"{children.get(key, 0)} pages build on page {entry.page}, not {entry.children}")
            if entry.stamp and not entry.children and entry.page not in lined_up:
                raise InvariantError(f"page {entry.page} is idle and nothing builds on it, but it is in no line")
