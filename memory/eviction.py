"""Which cached page goes first when room is needed: orders over the pages that nobody holds.

An order says how much a page is worth when nobody holds it and no other page builds on it any more; the page worth
least goes first, among equals the one left longest ago.  Whatever the order, a page that others build on outlives them:
chains are cut from the tail.

- ``lru``: left longest ago (Mattson et al., "Evaluation techniques for storage hierarchies", IBM Systems J., 1970).
- ``fifo``: computed longest ago.
- ``lfu``: found least often.
- ``cost``: cheapest to compute again, with a value that fades (GreedyDual; Young, "The k-server dual and loose
  competitiveness for paging", Algorithmica, 1994).  A page deep in a prompt costs more: its tokens attend to all
  before them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, Protocol

Eviction = Literal["lru", "fifo", "lfu", "cost"]

EVEN_PAGES = 256
"""A page this deep costs twice the first one: attention to 4,096 tokens (of 16 a page) as much as all the rest."""


class Left(Protocol):
    """A page that nobody holds: ``depth`` pages come before it in its prompt, ``uses`` requests found it, and it was
    computed as the ``born``-th page of all."""

    @property
    def depth(self) -> int: ...
    @property
    def uses(self) -> int: ...
    @property
    def born(self) -> int: ...


Worth = Callable[[Left, int], int]
"""Of a page, and the worth of the page that had been evicted last when its last holder left."""


def lru(page: Left, floor: int) -> int:
    """All alike: then the time decides."""
    return 0


def fifo(page: Left, floor: int) -> int:
    return page.born


def lfu(page: Left, floor: int) -> int:
    return page.uses


def cost(page: Left, floor: int) -> int:
    """What was evicted last is worth nothing any more: who leaves later counts from there."""
    return floor + EVEN_PAGES + page.depth


ORDERS: Mapping[Eviction, Worth] = {"lru": lru, "fifo": fifo, "lfu": lfu, "cost": cost}
