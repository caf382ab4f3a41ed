"""Paged KV memory that keeps computed prompts: a request that begins as an earlier one did computes only what differs.

Full pages of prompts are known by keys, each standing for its page and all before it, as in vLLM's automatic prefix
caching (Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention", SOSP 2023,
section 4.4; and its hash of a block with its prefix).  Pages that nobody holds stay findable until they are needed.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stepwell.core.errors import InvariantError
from stepwell.core.protocols import CopyPlan, KVUsage, NotNow, Reservation
from stepwell.core.types import Fit, Page, RequestId, StepId
from stepwell.memory import audit, duties, snapshot
from stepwell.memory.eviction import ORDERS, Eviction
from stepwell.memory.holders import HELD, Holders
from stepwell.memory.host import HostTier
from stepwell.memory.prefix_books import PrefixState, check_books
from stepwell.memory.prefix_index import Entry, PrefixIndex
from stepwell.memory.quarantine import Quarantine
from stepwell.memory.snapshot import Shape


class Prefix:
    """See ``KVAllocator`` for the contract; ``limit`` does not matter here.

    Pages that may be shared or are findable lead a request's table; work per page is done for those alone.  Whoever
    holds a findable page holds all pages before it in its prompt: so an idle page's children are idle, every idle page
    can be evicted in its turn, and a page in use never is.  Blank pages are handed out before any is evicted.
    """

    name = "prefix"
    reuses_prefixes = True

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """What goes first when room is needed."""

        eviction: Eviction = "lru"
        """``lru``: left longest ago; ``fifo``: computed longest ago; ``lfu``: found least often; ``cost``: cheapest to
        compute again."""

    def __init__(self, options: Options, *, pages: int, page_size: int, host_pages: int) -> None:
        """``pages`` device pages of ``page_size`` tokens, and ``host_pages`` to swap to; ``UserError`` if senseless."""
        self._shape = Shape(self.name, pages, page_size, host_pages)
        self.page_size = page_size
        self.total_pages = pages
        self.free_pages = pages
        self.returning_pages = 0
        self.free_host_pages = host_pages
        # Together with the idle pages of the index, the free ones.
        self._blank: list[Page] = list(range(pages))
        self._index = PrefixIndex(ORDERS[options.eviction])
        self._returning: Quarantine[list[Page]] = Quarantine()
        # Findable pages that nobody holds, and the step they wait for.
        self._waiting: dict[Page, StepId] = {}
        self._host = HostTier(host_pages)
        self._tables: dict[RequestId, list[Page]] = {}
        # How many pages at the start of a request's table may be shared or findable; absent: none.
        self._leading: dict[RequestId, int] = {}
        # Of all leading pages.
        self._holders = Holders()

    # ------------------------------------------------------------------------------------------------ questions

    def fits(self, tokens: int, limit: int) -> Fit:
        """Of a request that finds nothing.  ``NEVER`` if ``tokens`` exceed the whole pool, whatever ``limit`` says."""
        count = -(-tokens // self.page_size)
        if count > self.total_pages:
            return Fit.NEVER
        return Fit.FITS if count <= self.free_pages else Fit.NOT_NOW

    def pages_missing(self, tokens: int, limit: int, headroom: int = 0, keys: Sequence[int] = ()) -> int:
        """Exact: ``reserve`` succeeds if and only if it is 0 with no headroom, and so does ``swap_in`` without keys."""
        return max(0, headroom + self.pages_needed(tokens, limit, keys) - self.free_pages)

    def pages_needed(self, tokens: int, limit: int, keys: Sequence[int] = ()) -> int:
        """Pages that hold ``tokens``, less those that others hold (or steps in flight) and that ``keys`` find.

        An idle page counts: it is free now and will not be then.  O(log keys), and O(idle pages found).
        """
        count = -(-tokens // self.page_size)
        entry = self._index.find(keys, (tokens - 1) // self.page_size) if keys else None
        return count if entry is None else count - entry.depth - 1 + self._idle_pages(entry)

    def _idle_pages(self, entry: Entry | None) -> int:
        """Of ``entry`` and the pages before it."""
        idle, holders = 0, self._holders.counts
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
        return self._tables.get(request, ())

    def exclusive_pages(self, request: RequestId) -> int:
        """O(log leading pages), as whoever shares a page shares those before it."""
        table = self._tables.get(request, ())
        return len(table) - self._holders.shared(table, self._leading.get(request, 0))

    def usage(self) -> KVUsage:
        """``used`` counts a shared page once, and an idle one not at all."""
        return audit.usage(self, self._host.total_pages)

    # ------------------------------------------------------------------------------------------------- growing

    def reserve(self, request: RequestId, tokens: int, limit: int, keys: Sequence[int] = ()) -> Reservation | NotNow:
        """``InvariantError`` if ``request`` is swapped out, or not 1 <= ``tokens`` <= ``limit``."""
        duties.within_limit(request, tokens, limit)
        size = self.page_size
        table = self._tables.get(request)
        if table is None:
            duties.absent(request, self._tables, self._host.stored)
            return self._begin(request, tokens, keys)
        count = -(-tokens // size) - len(table)
        if count > self.free_pages:
            return NotNow(count - self.free_pages)
        pages = self._take(count) if count > 0 else []
        table += pages
        return Reservation(pages, len(table) * size)

    def _begin(self, request: RequestId, tokens: int, keys: Sequence[int]) -> Reservation | NotNow:
        """A new table, with what ``keys`` find in front; the last token is always left to compute."""
        count = -(-tokens // self.page_size)
        entry = self._index.find(keys, (tokens - 1) // self.page_size) if keys else None
        found = entry.depth + 1 if entry is not None else 0
        shared = 0
        short = count - found + self._idle_pages(entry) - self.free_pages
        if short > 0:
            return NotNow(short)
        pages: list[Page] = []
        while entry is not None:
            shared += self._hold(entry)
            pages.append(entry.page)
            entry = entry.parent
        if found:
            self._leading[request] = found
        pages = self._tables[request] = pages[::-1] + self._take(count - found)
        return Reservation(pages[:], count * self.page_size, found * self.page_size, shared)

    def _hold(self, entry: Entry) -> bool:
        """One holder more of a findable page; whether it has others."""
        page = entry.page
        entry.uses += 1
        if page in self._holders.counts:
            self._holders.hold(page)
            return True
        self._holders.hold(page)
        if entry.stamp:
            self._index.hold(entry)
            self.free_pages -= 1
        else:
            self._holders.late[page] = self._waiting.pop(page)
            self.returning_pages -= 1
        return False

    def _take(self, count: int) -> list[Page]:
        """Blank pages from the top of the stack, then evicted ones: in one call or in several, the same pages."""
        blank = self._blank
        self.free_pages -= count
        cut = len(blank) - count
        if cut >= 0:
            pages = blank[cut:]
            pages.reverse()
            del blank[cut:]
            return pages
        pages = blank[::-1]
        blank.clear()
        return pages + self._index.evict(-cut)

    def grow(self, requests: Sequence[RequestId]) -> list[Page] | NotNow:
        """``InvariantError`` if one of them has no table; nothing is changed then either."""
        if len(requests) > self.free_pages:
            return NotNow(len(requests) - self.free_pages)
        try:
            tables = [self._tables[request] for request in requests]
        except KeyError as error:
            raise InvariantError(f"request {error.args[0]} has no page table to grow") from None
        pages = self._take(len(requests))
        for table, page in zip(tables, pages, strict=True):
            table.append(page)
        return pages

    def publish(self, request: RequestId, tokens: int, keys: Sequence[int]) -> None:
        """``InvariantError`` if its table does not hold ``tokens``.

        Stops at a page whose key another page has: what builds on it here does not build on that one.
        """
        table = duties.table_of(request, self._tables)
        duties.holds(request, len(table) * self.page_size, tokens)
        index = self._index
        last = min(tokens // self.page_size, len(keys))
        place = last
        while place and table[place - 1] not in index.by_page:
            place -= 1
        parent = index.by_page[table[place - 1]] if place else None
        if parent is not None and parent.key != keys[place - 1]:
            return
        while place < last and keys[place] not in index.by_key:
            page = table[place]
            parent = index.add(keys[place], page, parent)
            self._holders.counts.setdefault(page, 1)
            place += 1
        if place > self._leading.get(request, 0):
            self._leading[request] = place

    def fork(self, parent: RequestId, child: RequestId, tokens: int) -> Reservation | NotNow:
        """``child`` gets the parent's first ``tokens``: full pages shared, a partly filled last page to be copied.

        ``InvariantError`` if the parent's table does not hold that many tokens, or the child has pages already.
        """
        table = duties.table_of(parent, self._tables)
        duties.absent(child, self._tables, self._host.stored)
        duties.holds(parent, len(table) * self.page_size, tokens, at_least=1)
        full, rest = divmod(tokens, self.page_size)
        fresh = 1 if rest else 0
        if fresh > self.free_pages:
            return NotNow(fresh)
        pages = self._take(fresh)
        shared = table[:full]
        for page in shared:
            self._holders.hold(page, already=1)
        if full:
            self._leading[parent] = max(full, self._leading.get(parent, 0))
            self._leading[child] = full
        self._tables[child] = shared + pages
        return Reservation(pages, (full + fresh) * self.page_size, full * self.page_size)

    # ---------------------------------------------------------------------------------------------- giving back

    def shrink(self, request: RequestId, tokens: int, after: StepId = 0) -> None:
        """``InvariantError`` if the next token would be written into a page that others read, or could find."""
        table = duties.table_of(request, self._tables)
        duties.known_length(request, tokens)
        full, rest = divmod(tokens, self.page_size)
        if full < len(table):
            page = table[full]
            if page in self._index.by_page or (rest and self._holders.counts.get(page, 1) > 1):
                raise InvariantError(f"request {request} cannot shrink to {tokens} tokens: page {page} is shared")
        keep = full + 1 if rest else full
        if keep < len(table):
            dropped = table[keep:]
            del table[keep:]
            leading = self._leading.pop(request, 0)
            if min(leading, keep):
                self._leading[request] = min(leading, keep)
            self._drop(dropped, leading - keep, after)

    def free(self, request: RequestId, after: StepId = 0) -> None:
        """``InvariantError`` for a request that has neither a table nor host pages."""
        table = self._tables.pop(request, None)
        if table is None:
            self._host.release(request, after)
            self.free_host_pages = self._host.free_pages
        else:
            self._drop(table, self._leading.pop(request, 0), after)

    def _drop(self, pages: list[Page], leading: int, after: StepId) -> None:
        """Take over ``pages`` that left a table; of the first ``leading``, children are released before parents."""
        if leading > 0:
            gone = [page for page in reversed(pages[:leading]) if self._leave(page, after)]
            pages = pages[leading:] + gone
        if pages:
            self._give(pages, after)

    def _give(self, pages: list[Page], after: StepId) -> None:
        if self._returning.hold(pages, after):
            self.returning_pages += len(pages)
            return
        self._blank += pages
        self.free_pages += len(pages)

    def _leave(self, page: Page, after: StepId) -> bool:
        """``True`` if nobody holds or finds it any more and it may go with the others, after ``after``."""
        until = self._holders.leave(page, after)
        if until == HELD:
            return False
        entry = self._index.by_page.get(page)
        if entry is not None:
            if until > self._returning.done:
                self._waiting[page] = until
                self.returning_pages += 1
            else:
                self._index.release(entry)
                self.free_pages += 1
            return False
        if until > after:
            self._give([page], until)
            return False
        return True

    def step_done(self, step: StepId) -> None:
        """``InvariantError`` if ``step`` is before one already reported."""
        for pages in self._returning.step_done(step):
            self._blank += pages
            self.free_pages += len(pages)
        if self._waiting:
            for page in [page for page, until in self._waiting.items() if until <= step]:
                del self._waiting[page]
                self._index.release(self._index.by_page[page])
                self.free_pages += 1
        self.returning_pages = self._returning.pages + len(self._waiting)
        self.free_host_pages = self._host.step_done(step)

    def forget(self) -> None:
        """Idle pages are blank from here on; pages in use stay with their requests, known to nobody else."""
        self._blank += self._index.clear()
        for page, until in self._waiting.items():
            self._returning.hold([page], until)
        self._waiting.clear()

    # ------------------------------------------------------------------------------------------------- swapping

    def swap_out(self, request: RequestId, tokens: int, after: StepId) -> CopyPlan | NotNow:
        """Pages beyond ``tokens`` are dropped, not copied.  ``InvariantError`` if the table holds fewer tokens."""
        table = duties.table_of(request, self._tables)
        duties.holds(request, len(table) * self.page_size, tokens)
        count = -(-tokens // self.page_size)
        host = self._host.store(request, count, after)
        if isinstance(host, NotNow):
            return host
        self.free_host_pages = self._host.free_pages
        device = table[:count]
        del self._tables[request]
        self._drop(table, self._leading.pop(request, 0), after)
        return CopyPlan(device, host)

    def swap_in(self, request: RequestId, tokens: int, limit: int, after: StepId) -> CopyPlan | NotNow:
        """Into pages of its own.  ``InvariantError`` as in ``Paged``: not swapped out, or too few tokens."""
        duties.within_limit(request, tokens, limit)
        count = -(-tokens // self.page_size)
        self._host.must_fit(request, count)
        if count > self.free_pages:
            return NotNow(count - self.free_pages)
        table = self._take(count)
        host = self._host.release(request, after)
        self.free_host_pages = self._host.free_pages
        self._tables[request] = table
        return CopyPlan(table[: len(host)], host, table[:], count * self.page_size)

    def host_lost(self) -> None:
        """Afterwards a swapped request is as unknown as one that was freed."""
        self._host.lost()
        self.free_host_pages = self._host.free_pages

    # ---------------------------------------------------------------------------------------- snapshot and audit

    def _state(self) -> PrefixState:
        return PrefixState(
            shape=self._shape,
            done=self._returning.done,
            blank=self._blank,
            returning=self._returning.rows(),
            waiting=list(self._waiting.items()),
            tables=list(self._tables.items()),
            leading=list(self._leading.items()),
            owners=list(self._holders.counts.items()),
            late=list(self._holders.late.items()),
            index=self._index.state(),
            host=self._host.state(),
        )

    def dump(self) -> object:
        """The exact state, order of the free pages included: what is loaded from it behaves the same."""
        return snapshot.encode(self._state())

    def load(self, data: object) -> None:
        """Take over what ``dump`` wrote, of a pool of the same shape; ``UserError`` otherwise, and nothing changed."""
        snapshot.take_over(data, PrefixState, self._state(), self._restore, self.check)

    def _restore(self, state: PrefixState) -> None:
        self._blank = list(state.blank)
        self._index.restore(state.index)
        self.free_pages = len(self._blank) + self._index.idle
        self._returning.restore(state.done, state.returning)
        self._waiting = dict(state.waiting)
        self.returning_pages = self._returning.pages + len(self._waiting)
        self._tables = {request: list(pages) for request, pages in state.tables}
        self._leading = dict(state.leading)
        self._holders.counts = dict(state.owners)
        self._holders.late = dict(state.late)
        self._host.restore(state.host, state.done)
        self.free_host_pages = self._host.free_pages

    def check(self) -> None:
        """O(pages); see ``check_books``."""
        audit.same("the count of free pages", self.free_pages, len(self._blank) + self._index.idle)
        audit.same("the count of returning pages", self.returning_pages, self._returning.pages + len(self._waiting))
        audit.same("the count of free host pages", self.free_host_pages, self._host.free_pages)
        check_books(self._state(), self._index, self._returning.places())
        self._host.check()
