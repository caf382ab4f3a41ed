"""What an allocator answers.

Plain classes in a module of their own, so that a compiled core makes them and reads them without a look-up by name.
"""

from __future__ import annotations

from stepwell.core.types import Page


class NotNow:
    """There is no room at present; ``short`` pages are missing."""

    __slots__ = ("short",)

    def __init__(self, short: int) -> None:
        self.short = short

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NotNow) and other.short == self.short

    def __hash__(self) -> int:
        return self.short

    def __repr__(self) -> str:
        return f"NotNow(short={self.short})"


class Reservation:
    """Pages newly appended to a request's table, and the tokens that its whole table can hold.

    ``cached`` tokens were found computed: their pages lead ``pages``, of which others hold ``shared`` too.  ``copies``
    (source, destination) fill pages of the request's own; they ride in the next step, before it computes, so that a
    source may be handed out again by a later call.  No source is the destination of an earlier one.
    """

    __slots__ = ("cached", "capacity", "copies", "pages", "shared")

    def __init__(
        self,
        pages: list[Page],
        capacity: int,
        cached: int = 0,
        shared: int = 0,
        copies: list[tuple[Page, Page]] | None = None,
    ) -> None:
        self.pages = pages
        self.capacity = capacity
        self.cached = cached
        self.shared = shared
        self.copies: list[tuple[Page, Page]] = [] if copies is None else copies

    def _all(self) -> tuple[object, ...]:
        return (self.pages, self.capacity, self.cached, self.shared, self.copies)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reservation) and other._all() == self._all()

    def __repr__(self) -> str:
        return (
            f"Reservation(pages={self.pages}, capacity={self.capacity}, cached={self.cached}, shared={self.shared}, "
            f"copies={self.copies})"
        )


class CopyPlan:
    """Pages to copy between device and host, pairwise; after a swap-in also the new ``table`` and its ``capacity``."""

    __slots__ = ("capacity", "device", "host", "table")

    def __init__(
        self, device: list[Page], host: list[Page], table: list[Page] | None = None, capacity: int = 0
    ) -> None:
        self.device = device
        self.host = host
        self.table: list[Page] = [] if table is None else table
        self.capacity = capacity

    def _all(self) -> tuple[object, ...]:
        return (self.device, self.host, self.table, self.capacity)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CopyPlan) and other._all() == self._all()

    def __repr__(self) -> str:
        return f"CopyPlan(device={self.device}, host={self.host}, table={self.table}, capacity={self.capacity})"
