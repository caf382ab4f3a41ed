"""The host tier: pages in host memory that keep the KV of requests that are swapped out.

After vLLM's swap space (Kwon et al., "Efficient Memory Management for Large Language Model Serving with
PagedAttention", SOSP 2023, section 4.5).  Host pages are not shared: a request that shared device pages stores its own.
"""

from __future__ import annotations

from stepwell.core.errors import InvariantError
from stepwell.core.protocols import NotNow
from stepwell.core.types import Page, RequestId, StepId
from stepwell.memory import audit
from stepwell.memory.quarantine import Quarantine
from stepwell.memory.snapshot import HostState


class HostTier:
    """A pool of host pages and who stores what in them.

    ``free_pages`` is kept up to date; ``stored`` maps a swapped request to its pages in order (read it, don't write).
    """

    def __init__(self, pages: int) -> None:
        self.total_pages = pages
        self.free_pages = pages
        self.stored: dict[RequestId, list[Page]] = {}
        self._written: dict[RequestId, StepId] = {}
        self._free = list(range(pages))
        self._returning: Quarantine[list[Page]] = Quarantine()

    def store(self, request: RequestId, count: int, after: StepId) -> list[Page] | NotNow:
        """Take ``count`` host pages for ``request``, whose copy is complete when step ``after`` is done.

        Raises ``InvariantError`` if it already stores some.
        """
        if request in self.stored:
            raise InvariantError(f"request {request} is already in the host tier")
        if count > self.free_pages:
            return NotNow(count - self.free_pages)
        cut = self.free_pages - count
        pages = self._free[cut:]
        del self._free[cut:]
        self.free_pages = cut
        self.stored[request] = pages
        self._written[request] = after
        return list(pages)

    def must_fit(self, request: RequestId, pages: int) -> None:
        """Raise ``InvariantError`` unless ``request`` is stored here, in at most ``pages`` pages."""
        stored = self.stored.get(request)
        if stored is None:
            raise InvariantError(f"request {request} is not swapped out")
        if len(stored) > pages:
            raise InvariantError(f"request {request} stores {len(stored)} pages, which do not fit in {pages}")

    def release(self, request: RequestId, after: StepId) -> list[Page]:
        """Give back what ``request`` stores: when step ``after`` is done and the copy into it as well.

        Returns the pages in order.  Raises ``InvariantError`` if it stores nothing.
        """
        pages = self.stored.pop(request, None)
        if pages is None:
            raise InvariantError(f"request {request} has neither a page table nor pages in the host tier")
        if not self._returning.hold(pages, max(after, self._written.pop(request))):
            self._put_back(pages)
        return list(pages)

    def step_done(self, step: StepId) -> int:
        """Pages that waited for steps up to ``step`` are free again; returns how many are free now."""
        for pages in self._returning.step_done(step):
            self._put_back(pages)
        return self.free_pages

    def lost(self) -> None:
        """The memory is gone, and whatever was copying to or from it: start afresh."""
        self.stored.clear()
        self._written.clear()
        self._returning = Quarantine(self._returning.done)
        self._free = list(range(self.total_pages))
        self.free_pages = self.total_pages

    def _put_back(self, pages: list[Page]) -> None:
        self._free += pages
        self.free_pages += len(pages)

    def state(self) -> HostState:
        """The state as it is, sharing its lists: encode it before anything changes."""
        stored = [(request, self._written[request], pages) for request, pages in self.stored.items()]
        return HostState(self._free, self._returning.rows(), stored)

    def restore(self, state: HostState, done: StepId) -> None:
        """Become ``state`` as of step ``done``; ``check`` says whether it makes sense."""
        self._free = list(state.free)
        self.free_pages = len(self._free)
        self._returning.restore(done, state.returning)
        self.stored = {request: list(pages) for request, _, pages in state.stored}
        self._written = {request: after for request, after, _ in state.stored}

    def check(self) -> None:
        """Raise ``InvariantError`` unless each host page is free, waiting, or stored by one request."""
        audit.same("the count of free host pages", self.free_pages, len(self._free))
        stored = [(f"the store of request {request}", pages) for request, pages in self.stored.items()]
        places = [("the free list", self._free), *self._returning.places(), *stored]
        audit.partition("host page", self.total_pages, places)
