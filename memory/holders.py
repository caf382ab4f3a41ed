"""Pages that several requests may hold: how many do, and what steps those who left early asked to wait for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stepwell.core.types import Page, StepId


class Holders:
    """``counts`` says how many tables hold a page, ``late`` what step somebody who let go of it asked to wait for."""

    def __init__(self) -> None:
        self.counts: dict[Page, int] = {}
        self.late: dict[Page, StepId] = {}

    def hold(self, page: Page, already: int = 0) -> None:
        """One more; ``already`` hold it if it was not counted before."""
        self.counts[page] = self.counts.get(page, already) + 1

    def leave(self, pages: Iterable[Page], after: StepId) -> list[tuple[StepId, list[Page]]]:
        """One less for each of ``pages``, who asks to wait for step ``after``.

        Returns the pages that nobody holds any more, in their order, as runs that wait for the same step.
        """
        counts, late = self.counts, self.late
        free: list[Page] = []
        for page in pages:
            count = counts[page] - 1
            if not count:
                del counts[page]
                free.append(page)
                continue
            counts[page] = count
            if after > late.get(page, 0):
                late[page] = after
        if not late:
            return [(after, free)]
        runs: list[tuple[StepId, list[Page]]] = []
        for page in free:
            until = max(late.pop(page, 0), after)
            if runs and runs[-1][0] == until:
                runs[-1][1].append(page)
            else:
                runs.append((until, [page]))
        return runs

    def shared(self, table: Sequence[Page], leading: int) -> int:
        """How many of the ``leading`` pages of ``table`` others hold too: the first ones, if any.  O(log leading)."""
        low, high = 0, leading
        while low < high:
            middle = (low + high) // 2
            if self.counts[table[middle]] > 1:
                low = middle + 1
            else:
                high = middle
        return low
