"""Page tables, on the device and in the host tier: what allocators that hand out single pages have in common.

Pages that several requests may hold lead a request's table; work per page is done for those alone.  Whoever holds such
a page holds those before it, so what is shared of a table are its first pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepwell.core.errors import InvariantError
from stepwell.core.protocols import CopyPlan, NotNow, Reservation
from stepwell.core.types import BoxedId, Page, RequestId, StepId
from stepwell.memory import audit, duties
from stepwell.memory.audit import Place
from stepwell.memory.holders import Holders
from stepwell.memory.host import HostTier
from stepwell.memory.pool import PagePool
from stepwell.memory.snapshot import TablesState


class PageTables:
    """Who has which pages; they come from ``pool`` and return to it.

    ``by_request`` are the device tables, ``leading`` says how many pages at the start of one may be shared (absent:
    none), ``holders`` counts the tables that each leading page is in.  The methods do what ``KVAllocator`` says.
    """

    def __init__(self, pool: PagePool, page_size: int, host_pages: int) -> None:
        self.by_request: dict[RequestId, list[Page]] = {}
        self.leading: dict[RequestId, int] = {}
        self.holders = Holders()
        self.host = HostTier(host_pages)
        self._pool = pool
        self._size = page_size

    def exclusive_pages(self, request: BoxedId) -> int:
        """O(log leading pages)."""
        table = self.by_request.get(request)
        if table is None:
            return 0
        leading = self.leading.get(request, 0)
        return len(table) - self.holders.shared(table, leading) if leading else len(table)

    # ------------------------------------------------------------------------------------------------- growing

    def reserve(self, request: BoxedId, tokens: int) -> Reservation | NotNow:
        """``InvariantError`` if ``request`` is swapped out."""
        table = self.by_request.get(request)
        if table is None:
            if request in self.host.stored:
                duties.absent(request, self.by_request, self.host.stored)
            table = []
        count = -(-tokens // self._size) - len(table)
        if count <= 0:
            return Reservation([], len(table) * self._size)
        short = count - self._pool.free_pages
        if short > 0:
            return NotNow(short)
        pages = self._pool.take(count)
        table += pages
        self.by_request[request] = table
        return Reservation(pages, len(table) * self._size)

    def begin(self, request: RequestId, front: list[Page], count: int) -> list[Page]:
        """A new table: ``front``, which ``holders`` has counted already, and ``count`` free pages, which there must be.

        Returns a copy of it.
        """
        if front:
            self.leading[request] = len(front)
        table = self.by_request[request] = front + self._pool.take(count)
        return table[:]

    def grow(self, requests: Sequence[RequestId]) -> list[Page] | NotNow:
        """``InvariantError`` if one of them has no table; nothing is changed then either.

        Growing in one call or in several hands out the same pages.  The scheduler's hottest call, about 0.1 us a
        request.
        """
        short = len(requests) - self._pool.free_pages
        if short > 0:
            return NotNow(short)
        # Of Any, because compiled code would unbox every integer and box it again.
        by_request: dict[Any, list[Any]] = self.by_request
        ids: Sequence[Any] = requests
        tables: list[list[Any]] = []
        for request in ids:
            found = by_request.get(request)
            if found is None:
                raise InvariantError(f"request {request} has no page table to grow")
            tables.append(found)
        pages: list[Any] = self._pool.take(len(tables))
        pages.reverse()
        for index, table in enumerate(tables):
            table.append(pages[index])
        return pages

    def fork(self, parent: RequestId, child: RequestId, shared: int, tokens: int, limit: int) -> Reservation | NotNow:
        """``InvariantError`` if the parent's table does not hold that many tokens, or the child has pages already."""
        size = self._size
        table = duties.forks(parent, child, self.by_request, self.host.stored, size, shared, tokens, limit)
        full, rest = divmod(shared, size)
        fresh = -(-tokens // size) - full
        short = fresh - self._pool.free_pages
        if short > 0:
            return NotNow(short)
        pages = self._pool.take(fresh)
        copies = [(table[full], pages[0])] if rest else []
        for page in table[:full]:
            self.holders.hold(page, already=1)
        if full:
            self.leading[parent] = max(full, self.leading.get(parent, 0))
            self.leading[child] = full
        pages = self.by_request[child] = table[:full] + pages
        return Reservation(pages[:], len(pages) * size, shared, full, copies)

    # ---------------------------------------------------------------------------------------------- giving back

    def shrink(self, request: RequestId, tokens: int, after: StepId) -> None:
        """``InvariantError`` if the next token would be written into a page that another request reads."""
        table = duties.table_of(request, self.by_request)
        duties.known_length(request, tokens)
        full, rest = divmod(tokens, self._size)
        if rest and full < len(table) and self.holders.counts.get(table[full], 1) > 1:
            raise InvariantError(f"request {request} cannot shrink to {tokens} tokens: page {table[full]} is shared")
        keep = full + 1 if rest else full
        if keep < len(table):
            dropped = table[keep:]
            del table[keep:]
            leading = self.leading.pop(request, 0)
            if min(leading, keep):
                self.leading[request] = min(leading, keep)
            self._drop(dropped, leading - keep, after)

    def free(self, request: BoxedId, after: StepId) -> None:
        """``InvariantError`` for a request that has neither a table nor host pages."""
        table = self.by_request.pop(request, None)
        if table is None:
            self.host.release(request, after)
        else:
            self._drop(table, self.leading.pop(request, 0), after)

    def _drop(self, pages: list[Page], leading: int, after: StepId) -> None:
        """Take over ``pages`` that left a table; of the first ``leading``, children are let go before parents."""
        if leading > 0:
            front, pages = pages[:leading], pages[leading:]
            for until, run in self.holders.leave(reversed(front), after):
                gone = self._pool.keep(run, until)
                if until == after:
                    pages += gone
                elif gone:
                    self._pool.give(gone, until)
        if pages:
            self._pool.give(pages, after)

    def step_done(self, step: StepId) -> None:
        """``InvariantError`` if ``step`` is before one already reported."""
        self._pool.step_done(step)
        self.host.step_done(step)

    # ------------------------------------------------------------------------------------------------- swapping

    def swap_out(self, request: RequestId, tokens: int, after: StepId) -> CopyPlan | NotNow:
        """Pages beyond ``tokens`` are dropped, not copied.  ``InvariantError`` if the table holds fewer tokens."""
        table = duties.table_of(request, self.by_request)
        duties.holds(request, len(table) * self._size, tokens)
        count = -(-tokens // self._size)
        host = self.host.store(request, count, after)
        if isinstance(host, NotNow):
            return host
        device = table[:count]
        del self.by_request[request]
        self._drop(table, self.leading.pop(request, 0), after)
        return CopyPlan(device, host)

    def swap_in(self, request: RequestId, tokens: int, limit: int, after: StepId) -> CopyPlan | NotNow:
        """Into pages of its own.  ``InvariantError`` if not swapped out, or ``tokens`` need fewer pages than stored."""
        duties.within_limit(request, tokens, limit)
        count = -(-tokens // self._size)
        self.host.must_fit(request, count)
        short = count - self._pool.free_pages
        if short > 0:
            return NotNow(short)
        table = self._pool.take(count)
        host = self.host.release(request, after)
        self.by_request[request] = table
        return CopyPlan(table[: len(host)], host, table[:], count * self._size)

    # ---------------------------------------------------------------------------------------- snapshot and audit

    def state(self) -> TablesState:
        """The state as it is, sharing its lists: encode it before anything changes."""
        return TablesState(
            tables=list(self.by_request.items()),
            leading=list(self.leading.items()),
            holders=list(self.holders.counts.items()),
            late=list(self.holders.late.items()),
            host=self.host.state(),
        )

    def restore(self, state: TablesState, done: StepId) -> None:
        """Become ``state`` as of step ``done``; ``check`` says whether it makes sense."""
        self.by_request = {request: list(pages) for request, pages in state.tables}
        self.leading = dict(state.leading)
        self.holders.counts = dict(state.holders)
        self.holders.late = dict(state.late)
        self.host.restore(state.host, done)

    def check(self, total: int, places: list[Place]) -> None:
        """Raise ``InvariantError`` unless each of ``total`` pages is in one of ``places``, or in as many tables as
        counted; O(pages)."""
        holders: dict[Page, int] = {}
        for request, table in self.by_request.items():
            if request in self.host.stored:
                raise InvariantError(f"request {request} is both on the device and in the host tier")
            if len(set(table)) < len(table):
                raise InvariantError(f"the table of request {request} names a page twice: {table}")
            leading = self.leading.get(request, 0)
            for page in table[:leading]:
                holders[page] = holders.get(page, 0) + 1
            first = [page for page in table[:leading] if holders[page] == 1]
            places.append((f"the table of request {request}", first + table[leading:]))
        audit.partition("page", total, places)
        if holders != self.holders.counts:
            raise InvariantError(f"leading pages are held by {holders}, but the counts say {self.holders.counts}")
        for page, step in self.holders.late.items():
            if page not in holders:
                raise InvariantError(f"page {page} waits for step {step}, but no request ever shared it")
        for request, leading in self.leading.items():
            if not 0 < leading <= len(self.by_request.get(request, ())):
                raise InvariantError(f"request {request} is said to share {leading} pages, which it does not have")
        self.host.check()
