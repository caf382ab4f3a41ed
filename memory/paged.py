"""Paged KV memory: any free page will do, so that only the last page of a request is ever partly empty.

The scheme of vLLM (Kwon et al., "Efficient Memory Management for Large Language Model Serving with PagedAttention",
SOSP 2023): page tables, reference counts, copy on write for requests that fork, swapping to the host.  No prefix reuse
between requests: page keys are ignored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from stepwell.core.protocols import CopyPlan, KVUsage, NotNow, Reservation
from stepwell.core.types import BoxedId, Fit, Page, RequestId, StepId
from stepwell.memory import audit, duties, snapshot
from stepwell.memory.paged_data import PagedOptions, PagedState
from stepwell.memory.pool import BlankPages
from stepwell.memory.snapshot import Shape
from stepwell.memory.tables import PageTables


class Paged:
    """See ``KVAllocator`` for the contract; ``limit`` and ``keys`` do not matter here.

    Pages are shared by ``fork`` only; requests that share nothing cost no work per page.
    """

    name: ClassVar[str] = "paged"
    reuses_prefixes: ClassVar[bool] = False
    shares_pages: ClassVar[bool] = True
    Options: ClassVar[type[PagedOptions]] = PagedOptions

    def __init__(self, options: PagedOptions, *, pages: int, page_size: int, host_pages: int) -> None:
        """``pages`` device pages of ``page_size`` tokens, and ``host_pages`` to swap to; ``UserError`` if senseless."""
        self._shape = Shape(self.name, pages, page_size, host_pages)
        self.page_size = self.key_tokens = page_size
        self.total_pages = pages
        self._pool = BlankPages(pages)
        self._tables = PageTables(self._pool, page_size, host_pages)

    # ------------------------------------------------------------------------------------------------ questions

    @property
    def free_pages(self) -> int:
        return self._pool.free_pages

    @property
    def returning_pages(self) -> int:
        return self._pool.returning.pages

    @property
    def free_host_pages(self) -> int:
        return self._tables.host.free_pages

    def fits(self, tokens: int, limit: int) -> Fit:
        """``NEVER`` if ``tokens`` exceed the whole pool, whatever ``limit`` says."""
        count = -(-tokens // self.page_size)
        if count <= self._pool.free_pages:
            return Fit.FITS
        return Fit.NOT_NOW if count <= self.total_pages else Fit.NEVER

    def pages_missing(self, tokens: int, limit: int, headroom: int = 0, keys: Sequence[int] = ()) -> int:
        """Exact: ``reserve`` and ``swap_in`` succeed if and only if it is 0 with no headroom."""
        missing = headroom - (-tokens // self.page_size) - self._pool.free_pages
        return missing if missing > 0 else 0

    def pages_needed(self, tokens: int, limit: int, keys: Sequence[int] = ()) -> int:
        """Pages that hold ``tokens``, the last one perhaps in part."""
        return -(-tokens // self.page_size)

    def cached_tokens(self, keys: Sequence[int]) -> int:
        """Always 0: nothing is kept for requests to come."""
        return 0

    def table(self, request: RequestId) -> Sequence[Page]:
        """A live list: read it, don't write or keep it."""
        return self._tables.by_request.get(request, ())

    def exclusive_pages(self, request: BoxedId) -> int:
        """O(log shared pages)."""
        return self._tables.exclusive_pages(request)

    def usage(self) -> KVUsage:
        """``used`` counts a shared page once."""
        return audit.usage(self, self._tables.host.total_pages)

    # ------------------------------------------------------------------------------------- growing and giving back

    def reserve(self, request: BoxedId, tokens: int, limit: int, keys: Sequence[int] = ()) -> Reservation | NotNow:
        """``InvariantError`` if ``request`` is swapped out, or not 1 <= ``tokens`` <= ``limit``."""
        duties.within_limit(request, tokens, limit)
        return self._tables.reserve(request, tokens)

    def grow(self, requests: Sequence[RequestId]) -> list[Page] | NotNow:
        """``InvariantError`` if one of them has no table; nothing is changed then either."""
        return self._tables.grow(requests)

    def fork(self, parent: RequestId, child: RequestId, shared: int, tokens: int, limit: int) -> Reservation | NotNow:
        """Pages full of ``shared`` tokens are the parent's too; of the next one its part is copied."""
        return self._tables.fork(parent, child, shared, tokens, limit)

    def publish(self, request: RequestId, tokens: int, keys: Sequence[int], tenant: str = "") -> None:
        """Nothing: nobody looks for it."""

    def pin_room(self, keys: Sequence[int]) -> int:
        return 0

    def pin(self, keys: Sequence[int], on: bool) -> None:
        """Nothing: nothing is found."""

    def forget(self) -> int:
        """Nothing: nothing is remembered."""
        return 0

    def shrink(self, request: RequestId, tokens: int, after: StepId = 0) -> None:
        """``InvariantError`` if the next token would be written into a page that another request reads."""
        self._tables.shrink(request, tokens, after)

    def free(self, request: BoxedId, after: StepId = 0) -> None:
        """``InvariantError`` for a request that has neither a table nor host pages."""
        self._tables.free(request, after)

    def step_done(self, step: StepId) -> None:
        """``InvariantError`` if ``step`` is before one already reported."""
        self._tables.step_done(step)

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

    def _state(self) -> PagedState:
        return PagedState(self._shape, self._pool.state(), self._tables.state())

    def dump(self) -> object:
        """The exact state, order of the free pages included: what is loaded from it behaves the same."""
        return snapshot.encode(self._state())

    def load(self, data: object) -> None:
        """Take over what ``dump`` wrote, of a pool of the same shape; ``UserError`` otherwise, and nothing changed."""
        snapshot.take_over(data, PagedState, self._state(), self._restore, self.check)

    def _restore(self, state: PagedState) -> None:
        self._pool.restore(state.pool)
        self._tables.restore(state.tables, state.pool.done)

    def check(self) -> None:
        """O(pages): each page is free, waiting, or in the tables of exactly as many requests as counted."""
        self._tables.check(self.total_pages, self._pool.places())
