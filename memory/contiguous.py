"""Contiguous KV memory, the baseline: a request gets its greatest length at once, as one extent of neighbouring pages.

What servers did before paging, for example Orca (Yu et al., OSDI 2022); the PagedAttention paper (Kwon et al., SOSP
2023, section 3) measures what it wastes.  Requests never run out of memory once admitted, and fewer are admitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from stepwell.core.errors import InvariantError
from stepwell.core.protocols import CopyPlan, KVUsage, NotNow, Reservation
from stepwell.core.types import Fit, Page, RequestId, StepId
from stepwell.memory import audit, duties, snapshot
from stepwell.memory.extents import Extent, Extents
from stepwell.memory.host import HostTier
from stepwell.memory.quarantine import Quarantine
from stepwell.memory.snapshot import HostState, Shape


class ContiguousState(msgspec.Struct, forbid_unknown_fields=True):
    """A snapshot.  ``done`` is the last step done; extents are (first page, page after the last)."""

    shape: Shape
    done: StepId
    free: list[Extent]
    returning: list[tuple[StepId, list[Extent]]]
    tables: list[tuple[RequestId, Extent]]
    host: HostState


class Contiguous:
    """See ``KVAllocator`` for the contract; ``tokens`` hardly matter here, ``limit`` decides, ``keys`` are ignored.

    An extent is kept whole until its request leaves: ``shrink`` gives nothing back, ``grow`` is never needed, and
    nothing is shared.  Placement is first fit, so free pages may be too scattered to be of use.
    """

    name = "contiguous"
    reuses_prefixes = False
    shares_pages = False

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """There is nothing to choose."""

    def __init__(self, options: Options, *, pages: int, page_size: int, host_pages: int) -> None:
        """``pages`` device pages of ``page_size`` tokens, and ``host_pages`` to swap to; ``UserError`` if senseless."""
        self._shape = Shape(self.name, pages, page_size, host_pages)
        self.page_size = self.key_tokens = page_size
        self.total_pages = pages
        self.free_pages = pages
        self.returning_pages = 0
        self.free_host_pages = host_pages
        self._free = Extents(pages)
        self._returning: Quarantine[range] = Quarantine()
        self._host = HostTier(host_pages)
        self._tables: dict[RequestId, range] = {}

    # ------------------------------------------------------------------------------------------------ questions

    def fits(self, tokens: int, limit: int) -> Fit:
        """``NEVER`` if ``limit`` exceeds the whole pool; ``NOT_NOW`` also if no free extent is long enough."""
        if self.pages_needed(tokens, limit) > self.total_pages:
            return Fit.NEVER
        return Fit.NOT_NOW if self.pages_missing(tokens, limit) else Fit.FITS

    def pages_missing(self, tokens: int, limit: int, headroom: int = 0, keys: Sequence[int] = ()) -> int:
        """With enough free pages but no extent as long, what the longest extent lacks; 0 only if it fits.

        With a negative ``headroom`` it is a lower bound: it takes the pages about to be freed for neighbours of the
        longest extent.
        """
        count = self.pages_needed(tokens, limit)
        return max(0, count + headroom - self.free_pages, count + min(headroom, 0) - self._free.largest())

    def pages_needed(self, tokens: int, limit: int, keys: Sequence[int] = ()) -> int:
        """Pages that hold the greatest length."""
        return -(-max(tokens, limit) // self.page_size)

    def cached_tokens(self, keys: Sequence[int]) -> int:
        """Always 0: nothing is kept for requests to come."""
        return 0

    def table(self, request: RequestId) -> Sequence[Page]:
        """A ``range``; empty if the request has no extent."""
        return self._tables.get(request, ())

    def exclusive_pages(self, request: RequestId) -> int:
        """All its pages: none is ever shared."""
        return len(self._tables.get(request, ()))

    def usage(self) -> KVUsage:
        """``used`` counts pages reserved, filled or not."""
        return audit.usage(self, self._host.total_pages)

    # ------------------------------------------------------------------------------------------------- growing

    def reserve(self, request: RequestId, tokens: int, limit: int, keys: Sequence[int] = ()) -> Reservation | NotNow:
        """Takes ``limit`` tokens at the first call, nothing later.

        ``InvariantError`` if ``request`` is swapped out, or not 1 <= ``tokens`` <= ``limit``, or ``tokens`` exceed the
        limit of the first call.
        """
        duties.within_limit(request, tokens, limit)
        extent = self._tables.get(request)
        if extent is not None:
            duties.holds(request, len(extent) * self.page_size, tokens)
            return Reservation([], len(extent) * self.page_size)
        duties.absent(request, self._tables, self._host.stored)
        placed = self._place(request, -(-limit // self.page_size))
        if isinstance(placed, NotNow):
            return placed
        return Reservation(list(placed), len(placed) * self.page_size)

    def grow(self, requests: Sequence[RequestId]) -> list[Page] | NotNow:
        """``InvariantError`` unless ``requests`` is empty: whoever has an extent has all it may ever need."""
        if requests:
            raise InvariantError(f"request {requests[0]} cannot grow: an extent holds its greatest length already")
        return []

    def fork(self, parent: RequestId, child: RequestId, shared: int, tokens: int, limit: int) -> Reservation | NotNow:
        """``child`` gets an extent for its own ``limit``, and all pages that hold ``shared`` are to be copied.

        ``InvariantError`` if the parent's extent does not hold that many tokens, or the child has pages already.
        """
        size = self.page_size
        extent = duties.forks(parent, child, self._tables, self._host.stored, size, shared, tokens, limit)
        placed = self._place(child, self.pages_needed(tokens, limit))
        if isinstance(placed, NotNow):
            return placed
        copies = list(zip(extent[: -(-shared // size)], placed, strict=False))
        return Reservation(list(placed), len(placed) * size, shared, 0, copies)

    def _place(self, request: RequestId, count: int) -> range | NotNow:
        extent = self._free.take(count)
        if extent is None:
            return NotNow(count - self._free.largest())
        self._tables[request] = extent
        self.free_pages -= count
        return extent

    def publish(self, request: RequestId, tokens: int, keys: Sequence[int], tenant: str = "") -> None:
        """Nothing: nobody looks for it."""

    def pin_room(self, keys: Sequence[int]) -> int:
        return 0

    def pin(self, keys: Sequence[int], on: bool) -> None:
        """Nothing: nothing is found."""

    def forget(self) -> int:
        """Nothing: nothing is remembered."""
        return 0

    # ---------------------------------------------------------------------------------------------- giving back

    def shrink(self, request: RequestId, tokens: int, after: StepId = 0) -> None:
        """Gives nothing back, so that the request can grow to its limit again."""
        duties.table_of(request, self._tables)
        duties.known_length(request, tokens)

    def free(self, request: RequestId, after: StepId = 0) -> None:
        """``InvariantError`` for a request that has neither an extent nor host pages."""
        extent = self._tables.pop(request, None)
        if extent is None:
            self._host.release(request, after)
            self.free_host_pages = self._host.free_pages
        else:
            self._give(extent, after)

    def _give(self, extent: range, after: StepId) -> None:
        if self._returning.hold(extent, after):
            self.returning_pages += len(extent)
        else:
            self._free.give(extent)
            self.free_pages += len(extent)

    def step_done(self, step: StepId) -> None:
        """``InvariantError`` if ``step`` is before one already reported."""
        for extent in self._returning.step_done(step):
            self._free.give(extent)
            self.free_pages += len(extent)
        self.returning_pages = self._returning.pages
        self.free_host_pages = self._host.step_done(step)

    # ------------------------------------------------------------------------------------------------- swapping

    def swap_out(self, request: RequestId, tokens: int, after: StepId) -> CopyPlan | NotNow:
        """The part that holds ``tokens`` is copied.  ``InvariantError`` if the extent holds fewer."""
        extent = duties.table_of(request, self._tables)
        duties.holds(request, len(extent) * self.page_size, tokens)
        device = list(extent[: -(-tokens // self.page_size)])
        host = self._host.store(request, len(device), after)
        if isinstance(host, NotNow):
            return host
        self.free_host_pages = self._host.free_pages
        del self._tables[request]
        self._give(extent, after)
        return CopyPlan(device, host)

    def swap_in(self, request: RequestId, tokens: int, limit: int, after: StepId) -> CopyPlan | NotNow:
        """Takes ``limit`` tokens.  ``InvariantError`` if not swapped out, or ``tokens`` need less than is stored."""
        duties.within_limit(request, tokens, limit)
        self._host.must_fit(request, -(-tokens // self.page_size))
        extent = self._place(request, self.pages_needed(tokens, limit))
        if isinstance(extent, NotNow):
            return extent
        host = self._host.release(request, after)
        self.free_host_pages = self._host.free_pages
        table = list(extent)
        return CopyPlan(table[: len(host)], host, table, len(table) * self.page_size)

    def host_lost(self) -> None:
        """Afterwards a swapped request is as unknown as one that was freed."""
        self._host.lost()
        self.free_host_pages = self._host.free_pages

    # ---------------------------------------------------------------------------------------- snapshot and audit

    def _state(self) -> ContiguousState:
        return ContiguousState(
            shape=self._shape,
            done=self._returning.done,
            free=self._free.rows(),
            returning=[(step, [_ends(run) for run in runs]) for step, runs in self._returning.rows()],
            tables=[(request, _ends(extent)) for request, extent in self._tables.items()],
            host=self._host.state(),
        )

    def dump(self) -> object:
        """The exact state: what is loaded from it behaves the same."""
        return snapshot.encode(self._state())

    def load(self, data: object) -> None:
        """Take over what ``dump`` wrote, of a pool of the same shape; ``UserError`` otherwise, and nothing changed."""
        snapshot.take_over(data, ContiguousState, self._state(), self._restore, self.check)

    def _restore(self, state: ContiguousState) -> None:
        self._free.restore(state.free)
        self.free_pages = _pages(state.free)
        self._returning.restore(state.done, [(step, [range(*run) for run in runs]) for step, runs in state.returning])
        self.returning_pages = self._returning.pages
        self._tables = {request: range(*extent) for request, extent in state.tables}
        self._host.restore(state.host, state.done)
        self.free_host_pages = self._host.free_pages

    def check(self) -> None:
        """O(pages): each page is free, waiting, or in one request's extent."""
        audit.same("the count of free pages", self.free_pages, _pages(self._free.rows()))
        audit.same("the count of returning pages", self.returning_pages, self._returning.pages)
        audit.same("the count of free host pages", self.free_host_pages, self._host.free_pages)
        free = [(f"the free extent {start}..{stop}", range(start, stop)) for start, stop in self._free.rows()]
        places = [*free, *self._returning.places()]
        for request, extent in self._tables.items():
            if request in self._host.stored:
                raise InvariantError(f"request {request} is both on the device and in the host tier")
            if not extent:
                raise InvariantError(f"request {request} has an empty extent")
            places.append((f"the extent of request {request}", extent))
        audit.partition("page", self.total_pages, places)
        self._host.check()


def _ends(extent: range) -> Extent:
    return extent.start, extent.stop


def _pages(extents: Iterable[Extent]) -> int:
    return sum(stop - start for start, stop in extents)
