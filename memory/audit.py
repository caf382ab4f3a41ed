"""Questions that every allocator asks of its own books: is each page in exactly one place?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stepwell.core.errors import InvariantError
from stepwell.core.protocols import KVAllocator, KVUsage
from stepwell.core.types import Page

Place = tuple[str, Sequence[Page]]
"""(what to call the place in a message, the pages in it)."""


def partition(what: str, total: int, places: Iterable[Place]) -> None:
    """Check that the places hold each of the pages 0 .. ``total`` - 1 exactly once; O(pages).

    Raises ``InvariantError`` naming the page and both places.  ``what`` is "page" or "host page".
    """
    seen: list[str] = [""] * total
    count = 0
    for place, pages in places:
        for page in pages:
            if not 0 <= page < total:
                raise InvariantError(f"{what} {page} in {place} is outside the pool of {total}")
            if seen[page]:
                raise InvariantError(f"{what} {page} is in {seen[page]} and in {place}")
            seen[page] = place
            count += 1
    if count != total:
        lost = next(page for page in range(total) if not seen[page])
        raise InvariantError(f"{total - count} of {total} {what}s are nowhere, the first of them {lost}")


def same(what: str, stated: int, counted: int) -> None:
    """Check a count that is kept up to date against the thing counted; raises ``InvariantError``."""
    if stated != counted:
        raise InvariantError(f"{what} says {stated}, but there are {counted}")


def usage(pool: KVAllocator, host_total: int) -> KVUsage:
    """The counts; ``used`` is what neither is free nor returns, and ``check`` compares that with the tables."""
    return KVUsage(
        total=pool.total_pages,
        free=pool.free_pages,
        used=pool.total_pages - pool.free_pages - pool.returning_pages,
        returning=pool.returning_pages,
        host_total=host_total,
        host_free=pool.free_host_pages,
    )
