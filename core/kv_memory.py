"""Interfaces of KV memory: what an allocator of pages is asked to do.

``core.protocols`` gives them out with all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from stepwell.core.kv_answers import CopyPlan as CopyPlan
from stepwell.core.kv_answers import NotNow as NotNow
from stepwell.core.kv_answers import Reservation as Reservation
from stepwell.core.types import Fit, Page, RequestId, StepId


class KVUsage(msgspec.Struct, frozen=True):
    """Page counts: ``free + used + returning == total`` always (``used`` counts a shared page once)."""

    total: int
    free: int
    used: int
    returning: int
    host_total: int
    host_free: int


class KVAllocator(Protocol):
    """Owns the page tables.  Transactional: a call either does all or changes nothing.

    ``after`` is the last step in flight that names the pages: they return to the pool when ``step_done`` reaches it,
    at once if it already has.
    ``keys`` are for prefix reuse: the ``i``-th identifies tokens ``i * key_tokens`` to ``(i + 1) * key_tokens`` of a
    request together with all before them; ``key_tokens`` is ``page_size`` or divides it.
    Full pages become findable by ``publish``, and stay so after their request left until somebody needs the room:
    ``free_pages`` counts them then.  Without ``reuses_prefixes`` keys, ``publish`` and ``forget`` do nothing.
    With ``shares_pages`` a fork takes as many pages less as are full of what it shares.
    """

    @property
    def reuses_prefixes(self) -> bool: ...
    @property
    def shares_pages(self) -> bool: ...
    @property
    def page_size(self) -> int: ...
    @property
    def key_tokens(self) -> int: ...
    @property
    def total_pages(self) -> int: ...
    @property
    def free_pages(self) -> int: ...
    @property
    def returning_pages(self) -> int: ...
    @property
    def free_host_pages(self) -> int: ...
    def fits(self, tokens: int, limit: int) -> Fit:
        """Dry run of ``reserve`` for a new request that holds ``tokens`` now and ``limit`` at most."""
        ...

    def pages_missing(self, tokens: int, limit: int, headroom: int = 0, keys: Sequence[int] = ()) -> int:
        """Free pages missing for such a request when ``headroom`` pages are to stay free; 0 if it fits."""
        ...

    def pages_needed(self, tokens: int, limit: int, keys: Sequence[int] = ()) -> int:
        """Pages that ``reserve`` would take from the free ones for such a request."""
        ...

    def cached_tokens(self, keys: Sequence[int]) -> int:
        """Tokens of the longest known prefix, without taking it (0 without prefix reuse)."""
        ...

    def reserve(self, request: RequestId, tokens: int, limit: int, keys: Sequence[int] = ()) -> Reservation | NotNow:
        """Make the request's table hold at least ``tokens``; creates the table if it has none.

        A new table begins with the known pages of ``keys``; at least one of ``tokens`` is left to compute.
        """
        ...

    def publish(self, request: RequestId, tokens: int, keys: Sequence[int], tenant: str = "") -> None:
        """The request's first ``tokens`` are computed for good: the full pages among them with keys become findable.

        They are counted to ``tenant``, where that matters.
        """
        ...

    def pin_room(self, keys: Sequence[int]) -> int:
        """How many of ``keys`` may be pinned; those that are need no room.  0 where nothing can be."""
        ...

    def pin(self, keys: Sequence[int], on: bool) -> None:
        """What ``keys`` identify is given up, once computed, after all that is not pinned; or no longer so, unless it
        is part of another pin.

        Nothing if ``pin_room`` is less than all of them.
        """
        ...

    def forget(self) -> int:
        """None is findable any more, as what they hold cannot be relied on; returns how many that nobody holds were."""
        ...

    def grow(self, requests: Sequence[RequestId]) -> list[Page] | NotNow:
        """Append one page to each request's table; returns the pages in the same order."""
        ...

    def shrink(self, request: RequestId, tokens: int, after: StepId = 0) -> None:
        """Give back pages beyond those that ``tokens`` need."""
        ...

    def fork(self, parent: RequestId, child: RequestId, shared: int, tokens: int, limit: int) -> Reservation | NotNow:
        """``reserve`` for a new request that begins with its parent's first ``shared`` tokens, at least one.

        Pages full of them are shared; what is left of them is copied, since both will write behind it (copy on write).
        """
        ...

    def free(self, request: RequestId, after: StepId = 0) -> None:
        """Drop the request's device table and its host pages, if any."""
        ...

    def swap_out(self, request: RequestId, tokens: int, after: StepId) -> CopyPlan | NotNow:
        """Move the pages that hold ``tokens`` to the host tier; shared pages are copied too, references dropped."""
        ...

    def swap_in(self, request: RequestId, tokens: int, limit: int, after: StepId) -> CopyPlan | NotNow:
        """Bring a swapped request back with room for ``tokens``; its host pages return after step ``after``."""
        ...

    def step_done(self, step: StepId) -> None:
        """Steps up to ``step`` are done: pages that waited for them return to the pool."""
        ...

    def host_lost(self) -> None:
        """The host tier's contents are gone; its pages are free again and swapped requests forgotten."""
        ...

    def table(self, request: RequestId) -> Sequence[Page]:
        """The request's device pages in order; empty if it has none."""
        ...

    def exclusive_pages(self, request: RequestId) -> int:
        """Device pages that no other request shares."""
        ...

    def usage(self) -> KVUsage: ...
    def dump(self) -> object:
        """Everything as JSON-like data, for a snapshot."""
        ...

    def load(self, data: object) -> None:
        """Take over a state written by ``dump``; raises ``UserError`` if it is malformed."""
        ...

    def check(self) -> None:
        """Raise ``InvariantError`` unless pages are conserved and no page has two owners that do not share it."""
        ...
