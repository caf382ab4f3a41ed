"""Paged KV memory that keeps computed prompts: a request that begins as an earlier one did computes only what differs.

Full pages of prompts are known by keys, each standing for its page and all before it, as in vLLM's automatic prefix
caching (Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023,
section 4.4; and its hash of a block with its prefix).  Pages that nobody holds stay findable until they are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from stepwell.core.errors import InvariantError
from stepwell.core.protocols import CopyPlan, KVUsage, NotNow, Reservation
from stepwell.core.types import Fit, Page, RequestId, StepId
from stepwell.memory import audit, duties, snapshot
from stepwell.memory.eviction import ORDERS, Eviction
from stepwell.memory.prefix_index import Entry, IndexState, PrefixIndex
from stepwell.memory.prefix_pool import PrefixPool, PrefixPoolState, check_findable
from stepwell.memory.quotas import Quotas
from stepwell.memory.snapshot import Shape, TablesState
from stepwell.memory.tables import PageTables


class PrefixState(msgspec.Struct, forbid_unknown_fields=True):
    """A snapshot."""

    shape: Shape
    pool: PrefixPoolState
    index: IndexState
    tables: TablesState


class Prefix:
    """See ``KVAllocator`` for the contract; ``limit`` does not matter here.

    A table's findable pages are among its leading ones.  Whoever holds a findable page holds all pages before it in its
    prompt: so an idle page's children are idle, every idle page can be evicted in its turn, and a page in use never is.
    """

    name = "prefix"
    reuses_prefixes = True
    shares_pages = True

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """What goes first when room is needed, and how much a tenant may keep."""

        eviction: Eviction = "lru"
        """``lru``: left longest ago; ``fifo``: computed longest ago; ``lfu``: found least often; ``cost``: cheapest to
        compute again."""

        pinned: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.25
        """Share of the pool that may be pinned: given up after everything else."""

        quota: dict[str, Annotated[float, msgspec.Meta(ge=0, le=1)]] = {}
        """Shares of the pool, by tenant: whoever's requests left more findable than that gives up first."""

    def __init__(self, options: Options, *, pages: int, page_size: int, host_pages: int) -> None:
        """``pages`` device pages of ``page_size`` tokens, and ``host_pages`` to swap to; ``UserError`` if senseless."""
        self._shape = Shape(self.name, pages, page_size, host_pages)
        self.page_size = self.key_tokens = page_size
        self.total_pages = pages
        quotas = Quotas({tenant: int(share * pages) for tenant, share in options.quota.items()})
        self._most_pinned = int(options.pinned * pages)
        self._index = PrefixIndex(ORDERS[options.eviction], quotas)
        self._pool = PrefixPool(pages, self._index)
        self._blank = self._pool.blank
        self._tables = PageTables(self._pool, page_size, host_pages)

    # ------------------------------------------------------------------------------------------------ questions

    @property
    def free_pages(self) -> int:
        return self._blank.free_pages + self._index.idle

    @property
    def returning_pages(self) -> int:
        return self._blank.returning.pages + len(self._pool.waiting)

    @property
    def free_host_pages(self) -> int:
        return self._tables.host.free_pages

    def fits(self, tokens: int, limit: int) -> Fit:
        """Of a request that finds nothing.  ``NEVER`` if ``tokens`` exceed the whole pool, whatever ``limit`` says."""
        count = -(-tokens // self.page_size)
        if count > self.total_pages:
            return Fit.NEVER
        return Fit.FITS if count <= self.free_pages else Fit.NOT_NOW

    def pages_missing(self, tokens: int, limit: int, headroom: int = 0, keys: Sequence[int] = ()) -> int:
        """Exact: ``reserve`` succeeds if and only if it is 0 with no headroom, and so does ``swap_in`` without keys."""
        needed = self.pages_needed(tokens, limit, keys) if keys else -(-tokens // self.page_size)
        missing = headroom + needed - self._blank.free_pages - self._index.idle
        return missing if missing > 0 else 0

    def pages_needed(self, tokens: int, limit: int, keys: Sequence[int] = ()) -> int:
        """Pages that hold ``tokens``, less those that others hold (or steps in flight) and that ``keys`` find.

        An idle page counts: it is free now and will not be then.  O(log keys), and O(idle pages found).
        """
        count = -(-tokens // self.page_size)
        entry = self._index.find(keys, (tokens - 1) // self.page_size) if keys else None
        return count if entry is None else count - entry.depth - 1 + self._idle_pages(entry)

    def _idle_pages(self, entry: Entry | None) -> int:
        """Of ``entry`` and the pages before it."""
        idle, holders = 0, self._tables.holders.counts
        while entry is not None and entry.page not in holders:
            idle += entry.stamp > 0
            entry = entry.parent
        return idle

    def cached_tokens(self, keys: Sequence[int]) -> int:
        """Tokens of the longest prefix of ``keys`` that is findable now."""
        entry = self._index.find(keys, len(keys)) if keys else None
        return (entry.depth + 1) * self.page_size if entry is not None else 0

    def table(self, request: RequestId) -> Sequence[Page]:
        """A live list: read it, don't write or keep it."""
        return self._tables.by_request.get(request, ())

    def exclusive_pages(self, request: RequestId) -> int:
        """O(log leading pages), as whoever shares a page shares those before it."""
        return self._tables.exclusive_pages(request)

    def usage(self) -> KVUsage:
        """``used`` counts a shared page once, and an idle one not at all."""
        return audit.usage(self, self._tables.host.total_pages)

    # ------------------------------------------------------------------------------------------------- growing

    def reserve(self, request: RequestId, tokens: int, limit: int, keys: Sequence[int] = ()) -> Reservation | NotNow:
        """``InvariantError`` if ``request`` is swapped out, or not 1 <= ``tokens`` <= ``limit``."""
        duties.within_limit(request, tokens, limit)
        entry = self._index.find(keys, (tokens - 1) // self.page_size) if keys else None
        if entry is None or request in self._tables.by_request:
            return self._tables.reserve(request, tokens)
        duties.absent(request, self._tables.by_request, self._tables.host.stored)
        return self._begin(request, tokens, entry)

    def _begin(self, request: RequestId, tokens: int, entry: Entry) -> Reservation | NotNow:
        """A new table, with ``entry`` and the pages before it in front; the last token is always left to compute."""
        count = -(-tokens // self.page_size)
        found = entry.depth + 1
        short = count - found + self._idle_pages(entry) - self._pool.free_pages
        if short > 0:
            return NotNow(short)
        front = self._index.hold(entry)
        shared = self._pool.join(front, self._tables.holders)
        pages = self._tables.begin(request, front, count - found)
        return Reservation(pages, count * self.page_size, found * self.page_size, shared)

    def grow(self, requests: Sequence[RequestId]) -> list[Page] | NotNow:
        """``InvariantError`` if one of them has no table; nothing is changed then either."""
        return self._tables.grow(requests)

    def publish(self, request: RequestId, tokens: int, keys: Sequence[int], tenant: str = "") -> None:
        """``InvariantError`` if its table does not hold ``tokens``.

        Stops at a page whose key another page has: what builds on it here does not build on that one.
        """
        table = duties.table_of(request, self._tables.by_request)
        duties.holds(request, len(table) * self.page_size, tokens)
        index = self._index
        last = min(tokens // self.page_size, len(keys))
        place = last
        while place and table[place - 1] not in index.by_page:
            place -= 1
        parent = index.by_page[table[place - 1]] if place else None
        if parent is not None and parent.key != keys[place - 1]:
            return
        place += index.add(keys[place:last], table[place:last], parent, self._tables.holders.counts, tenant)
        if place > self._tables.leading.get(request, 0):
            self._tables.leading[request] = place

    def pin_room(self, keys: Sequence[int]) -> int:
        new = len([key for key in keys if key not in self._index.pinned])
        return len(keys) - max(0, new - self._most_pinned + len(self._index.pinned))

    def pin(self, keys: Sequence[int], on: bool) -> None:
        if not on:
            self._index.unpin(keys)
        elif self.pin_room(keys) == len(keys):
            self._index.pin(keys)

    def fork(self, parent: RequestId, child: RequestId, shared: int, tokens: int, limit: int) -> Reservation | NotNow:
        """Pages full of ``shared`` tokens are the parent's too; of the next one its part is copied."""
        return self._tables.fork(parent, child, shared, tokens, limit)

    # ---------------------------------------------------------------------------------------------- giving back

    def shrink(self, request: RequestId, tokens: int, after: StepId = 0) -> None:
        """``InvariantError`` if the next token would be written into a page that others read, or could find."""
        table = duties.table_of(request, self._tables.by_request)
        full = max(tokens, 0) // self.page_size
        if full < len(table) and table[full] in self._index.by_page:
            raise InvariantError(f"request {request} cannot shrink to {tokens} tokens: page {table[full]} is shared")
        self._tables.shrink(request, tokens, after)

    def free(self, request: RequestId, after: StepId = 0) -> None:
        """``InvariantError`` for a request that has neither a table nor host pages."""
        self._tables.free(request, after)

    def step_done(self, step: StepId) -> None:
        """``InvariantError`` if ``step`` is before one already reported."""
        self._tables.step_done(step)

    def forget(self) -> int:
        """Idle pages are blank from here on; pages in use stay with their requests, known to nobody else."""
        return self._pool.forget()

    # ------------------------------------------------------------------------------------------------- swapping

    def swap_out(self, request: RequestId, tokens: int, after: StepId) -> CopyPlan | NotNow:
        """Pages beyond ``tokens`` are dropped, not copied."""
        return self._tables.swap_out(request, tokens, after)

    def swap_in(self, request: RequestId, tokens: int, limit: int, after: StepId) -> CopyPlan | NotNow:
        """``InvariantError`` if it is not swapped out, or ``tokens`` need fewer pages than it stores."""
        return self._tables.swap_in(request, tokens, limit, after)

    def host_lost(self) -> None:
        """Afterwards a swapped request is as unknown as one that was freed."""
        self._tables.host.lost()

    # ---------------------------------------------------------------------------------------- snapshot and audit

    def _state(self) -> PrefixState:
        return PrefixState(self._shape, self._pool.state(), self._index.state(), self._tables.state())

    def dump(self) -> object:
        """The exact state, order of the free pages included: what is loaded from it behaves the same."""
        return snapshot.encode(self._state())

    def load(self, data: object) -> None:
        """Take over what ``dump`` wrote, of a pool of the same shape; ``UserError`` otherwise, and nothing changed."""
        snapshot.take_over(data, PrefixState, self._state(), self._restore, self.check)

    def _restore(self, state: PrefixState) -> None:
        self._index.restore(state.index)
        self._pool.restore(state.pool)
        self._tables.restore(state.tables, self._pool.done)

    def check(self) -> None:
        """O(pages): each page is blank, idle, waiting, or in the tables of as many requests as counted; whatever is
        findable is found at its own place."""
        self._tables.check(self.total_pages, self._pool.places())
        check_findable(self._index, self._tables)
