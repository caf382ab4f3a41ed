"""Free runs of neighbouring pages: first fit, merged when they come back."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from operator import sub

from stepwell.core.errors import InvariantError

Extent = tuple[int, int]
"""(first page, page after the last)."""


class Extents:
    """Disjoint free extents in ascending order, never adjacent.  All operations are O(extents)."""

    def __init__(self, pages: int) -> None:
        self._starts: list[int] = [0]
        self._stops: list[int] = [pages]

    def largest(self) -> int:
        """Pages in the longest extent; 0 if there is none."""
        return max(map(sub, self._stops, self._starts), default=0)

    def take(self, count: int) -> range | None:
        """The first ``count`` pages of the first extent that has them; ``None`` if none does."""
        for index, (start, stop) in enumerate(zip(self._starts, self._stops, strict=True)):
            if stop - start >= count:
                if stop - start == count:
                    del self._starts[index], self._stops[index]
                else:
                    self._starts[index] = start + count
                return range(start, start + count)
        return None

    def give(self, run: range) -> None:
        """Take ``run`` back; it becomes one extent with its free neighbours."""
        start, stop = run.start, run.stop
        index = bisect_left(self._starts, start)
        if index < len(self._starts) and self._starts[index] == stop:
            stop = self._stops[index]
            del self._starts[index], self._stops[index]
        if index and self._stops[index - 1] == start:
            self._stops[index - 1] = stop
        else:
            self._starts.insert(index, start)
            self._stops.insert(index, stop)

    def rows(self) -> list[Extent]:
        """The extents in ascending order."""
        return list(zip(self._starts, self._stops, strict=True))

    def restore(self, rows: Iterable[Extent]) -> None:
        """Become ``rows``; ``InvariantError`` if they are empty, out of order, overlap or touch."""
        self._starts, self._stops = [], []
        before = -1
        for start, stop in rows:
            if not before < start < stop:
                raise InvariantError(f"the free extent {start}..{stop} is empty or not beyond {before}")
            self._starts.append(start)
            self._stops.append(stop)
            before = stop
