"""Paged KV memory: any free page will do, so that only the last page of a request is ever partly empty.

The scheme of vLLM (Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention",
SOSP 2023): page tables, reference counts, copy on write for requests that fork, swapping to the host.  No prefix reuse
between requests: page keys are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stepwell.core.errors import InvariantError
from stepwell.core.protocols import CopyPlan, KVUsage, NotNow, Reservation
from stepwell.core.types import Fit, Page, RequestId, StepId
from stepwell.memory import audit, duties, snapshot
from stepwell.memory.host import HostState, HostTier
from stepwell.memory.quarantine import Quarantine
from stepwell.memory.snapshot import Pages, Shape, StepRow, TableRow


class PagedState(msgspec.Struct, forbid_unknown_fields=True):
    """A snapshot.  ``done`` is the last step done; pairs in ``leading``, ``owners`` and ``late`` as in ``Paged``."""

    shape: Shape
    done: StepId
    free: Pages
    returning: list[StepRow]
    tables: list[TableRow]
    leading: list[tuple[RequestId, int]]
    owners: list[tuple[Page, int]]
    late: list[tuple[Page, StepId]]
    host: HostState


class Paged:
    """See ``KVAllocator`` for the contract; ``limit`` and ``keys`` do not matter here.

    The free pages are a stack: the pages freed last are handed out first.  Pages are shared by ``fork`` only, so a
    request's shared pages lead its table; requests that share nothing cost no work per page.
    """

    name = "paged"
    reuses_prefixes = False

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """There is nothing to choose."""

    def __init__(self, options: Options, *, pages: int, page_size: int, host_pages: int) -> None:
        """``pages`` device pages of ``page_size`` tokens, and ``host_pages`` to swap to; ``UserError`` if senseless."""
        self._shape = Shape(self.name, pages, page_size, host_pages)
        self.page_size = page_size
        self.total_pages = pages
        self.free_pages = pages
        self.returning_pages = 0
        self.free_host_pages = host_pages
        self._free: list[Page] = list(range(pages))
        self._returning: Quarantine[list[Page]] = Quarantine()
        self._host = HostTier(host_pages)
        self._tables: dict[RequestId, list[Page]] = {}
        # How many pages at the start of a request's table may be shared; absent: none.
        self._leading: dict[RequestId, int] = {}
        # How many tables hold a page; absent: at most one.
        self._owners: dict[Page, int] = {}
        # The step that an owner who left early asked to wait for, of a page that others still hold.
        self._late: dict[Page, StepId] = {}

    # ------------------------------------------------------------------------------------------------ questions

    def fits(self, tokens: int, limit: int) -> Fit:
        """``NEVER`` if ``tokens`` exceed the whole pool, whatever ``limit`` says."""
        count = -(-tokens // self.page_size)
        if count <= self.free_pages:
            return Fit.FITS
        return Fit.NOT_NOW if count <= self.total_pages else Fit.NEVER

    def pages_missing(self, tokens: int, limit: int, headroom: int = 0, keys: Sequence[int] = ()) -> int:
        """Exact: ``reserve`` and ``swap_in`` succeed if and only if it is 0 with no headroom."""
        missing = headroom - (-tokens // self.page_size) - self.free_pages
        return missing if missing > 0 else 0

    def pages_needed(self, tokens: int, limit: int, keys: Sequence[int] = ()) -> int:
        """Pages that hold ``tokens``, the last one perhaps in part."""
        return -(-tokens // self.page_size)

    def cached_tokens(self, keys: Sequence[int]) -> int:
        """Always 0: nothing is kept for requests to come."""
        return 0

    def table(self, request: RequestId) -> Sequence[Page]:
        """A live list: read it, don't write or keep it."""
        return self._tables.get(request, ())

    def exclusive_pages(self, request: RequestId) -> int:
        """O(1), or O(shared pages) for a request that forked."""
        table = self._tables.get(request, ())
        leading = self._leading.get(request, 0)
        return len(table) - sum(1 for page in table[:leading] if page in self._owners)

    def usage(self) -> KVUsage:
        """``used`` counts a shared page once."""
        return audit.usage(self, self._host.total_pages)

    # ------------------------------------------------------------------------------------------------- growing

    def reserve(self, request: RequestId, tokens: int, limit: int, keys: Sequence[int] = ()) -> Reservation | NotNow:
        """``InvariantError`` if ``request`` is swapped out, or not 1 <= ``tokens`` <= ``limit``."""
        duties.within_limit(request, tokens, limit)
        size = self.page_size
        table = self._tables.get(request)
        if table is None:
            duties.absent(request, self._tables, self._host.stored)
            table = []
        count = -(-tokens // size) - len(table)
        if count <= 0:
            return Reservation([], len(table) * size)
        if count > self.free_pages:
            return NotNow(count - self.free_pages)
        pages = self._take(count)
        table += pages
        self._tables[request] = table
        return Reservation(pages, len(table) * size)

    def grow(self, requests: Sequence[RequestId]) -> list[Page] | NotNow:
        """``InvariantError`` if one of them has no table; nothing is changed then either.

        Pages come off the stack one by one: growing in one call or in several hands out the same pages.
        The scheduler's hottest call, hence written out: about 0.1 us a request.
        """
        left = self.free_pages - len(requests)
        if left < 0:
            return NotNow(-left)
        free = self._free
        pages = free[left:]
        pages.reverse()
        del free[left:]
        self.free_pages = left
        tables = self._tables
        try:
            for request, page in zip(requests, pages, strict=True):
                tables[request].append(page)
        except KeyError as error:
            self._undo_growth(requests, pages)
            raise InvariantError(f"request {error.args[0]} has no page table to grow") from None
        return pages

    def _undo_growth(self, requests: Sequence[RequestId], pages: list[Page]) -> None:
        for request in requests:
            if request not in self._tables:
                break
            self._tables[request].pop()
        self._free += reversed(pages)
        self.free_pages += len(pages)

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
            self._owners[page] = self._owners.get(page, 1) + 1
        if full:
            self._leading[parent] = max(full, self._leading.get(parent, 0))
            self._leading[child] = full
        self._tables[child] = shared + pages
        return Reservation(pages, (full + fresh) * self.page_size, full * self.page_size)

    def _take(self, count: int) -> list[Page]:
        cut = self.free_pages - count
        pages = self._free[cut:]
        del self._free[cut:]
        self.free_pages = cut
        return pages

    def publish(self, request: RequestId, tokens: int, keys: Sequence[int]) -> None:
        """Nothing: nobody looks for it."""

    def forget(self) -> None:
        """Nothing: nothing is remembered."""

    # ---------------------------------------------------------------------------------------------- giving back

    def shrink(self, request: RequestId, tokens: int, after: StepId = 0) -> None:
        """``InvariantError`` if the next token would be written into a page that another request reads."""
        table = duties.table_of(request, self._tables)
        duties.known_length(request, tokens)
        full, rest = divmod(tokens, self.page_size)
        if rest and full < len(table) and table[full] in self._owners:
            raise InvariantError(f"request {request} cannot shrink to {tokens} tokens: page {table[full]} is shared")
        keep = full + 1 if rest else full
        if keep < len(table):
            dropped = table[keep:]
            del table[keep:]
            leading = self._leading.get(request, 0)
            if leading > keep:
                self._set_leading(request, keep)
            self._drop(dropped, leading - keep, after)

    def free(self, request: RequestId, after: StepId = 0) -> None:
        """``InvariantError`` for a request that has neither a table nor host pages."""
        table = self._tables.pop(request, None)
        if table is None:
            self._host.release(request, after)
            self.free_host_pages = self._host.free_pages
        else:
            self._drop(table, self._leading.pop(request, 0), after)

    def _set_leading(self, request: RequestId, count: int) -> None:
        if count:
            self._leading[request] = count
        else:
            del self._leading[request]

    def _drop(self, pages: list[Page], leading: int, after: StepId) -> None:
        """Take over ``pages`` that left a table; the first ``leading`` may be held by others too."""
        if leading > 0:
            pages = [page for page in pages[:leading] if self._leave(page, after)] + pages[leading:]
        if pages:
            self._give(pages, after)

    def _give(self, pages: list[Page], after: StepId) -> None:
        if self._returning.hold(pages, after):
            self.returning_pages += len(pages)
        else:
            self._free += pages
            self.free_pages += len(pages)

    def _leave(self, page: Page, after: StepId) -> bool:
        """One owner less.  ``True`` if that was the last one and the page may go with the others, after ``after``."""
        owners = self._owners.get(page, 1)
        late = self._late.get(page, 0)
        if owners == 1:
            self._late.pop(page, None)
            if late <= after:
                return True
            self._give([page], late)
            return False
        if owners == 2:
            del self._owners[page]
        else:
            self._owners[page] = owners - 1
        if after > late:
            self._late[page] = after
        return False

    def step_done(self, step: StepId) -> None:
        """``InvariantError`` if ``step`` is before one already reported."""
        for pages in self._returning.step_done(step):
            self._free += pages
            self.free_pages += len(pages)
        self.returning_pages = self._returning.pages
        self.free_host_pages = self._host.step_done(step)

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
        """``InvariantError`` if it is not swapped out, or ``tokens`` need fewer pages than it stores."""
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

    def _state(self) -> PagedState:
        return PagedState(
            shape=self._shape,
            done=self._returning.done,
            free=self._free,
            returning=self._returning.rows(),
            tables=list(self._tables.items()),
            leading=list(self._leading.items()),
            owners=list(self._owners.items()),
            late=list(self._late.items()),
            host=self._host.state(),
        )

    def dump(self) -> object:
        """The exact state, order of the free pages included: what is loaded from it behaves the same."""
        return snapshot.encode(self._state())

    def load(self, data: object) -> None:
        """Take over what ``dump`` wrote, of a pool of the same shape; ``UserError`` otherwise, and nothing changed."""
        snapshot.take_over(data, PagedState, self._state(), self._restore, self.check)

    def _restore(self, state: PagedState) -> None:
        self._free = list(state.free)
        self.free_pages = len(self._free)
        self._returning.restore(state.done, state.returning)
        self.returning_pages = self._returning.pages
        self._tables = {request: list(pages) for request, pages in state.tables}
        self._leading = dict(state.leading)
        self._owners = dict(state.owners)
        self._late = dict(state.late)
        self._host.restore(state.host, state.done)
        self.free_host_pages = self._host.free_pages

    def check(self) -> None:
        """O(pages): each page is free, waiting, or in the tables of exactly as many requests as counted."""
        audit.same("the count of free pages", self.free_pages, len(self._free))
        audit.same("the count of returning pages", self.returning_pages, self._returning.pages)
        audit.same("the count of free host pages", self.free_host_pages, self._host.free_pages)
        owners: dict[Page, int] = {}
        places = [("the free list", self._free), *self._returning.places()]
        for request, table in self._tables.items():
            if request in self._host.stored:
                raise InvariantError(f"request {request} is both on the device and in the host tier")
            if len(set(table)) < len(table):
                raise InvariantError(f"the table of request {request} names a page twice: {table}")
            leading = self._leading.get(request, 0)
            for page in table[:leading]:
                owners[page] = owners.get(page, 0) + 1
            first = [page for page in table[:leading] if owners[page] == 1]
            places.append((f"the table of request {request}", first + table[leading:]))
        audit.partition("page", self.total_pages, places)
        shared = {page: count for page, count in owners.items() if count > 1}
        if shared != self._owners:
            raise InvariantError(f"pages are shared by {shared}, but the counts say {self._owners}")
        for page in self._late:
            if page not in owners:
                raise InvariantError(f"page {page} waits for step {self._late[page]}, but no request ever shared it")
        for request, leading in self._leading.items():
            if not 0 < leading <= len(self._tables.get(request, ())):
                raise InvariantError(f"request {request} is said to share {leading} pages, which it does not have")
        self._host.check()
