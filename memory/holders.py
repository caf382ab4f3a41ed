"""Pages that several requests may hold: how many do, and what steps those who left early asked to wait for."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.core.types import Page, StepId

HELD: StepId = -1
"""Instead of a step to wait for: others still hold the page."""


class Holders:
    """``counts`` says how many tables hold a page, ``late`` what step somebody who let go of it asked to wait for."""

    def __init__(self) -> None:
        self.counts: dict[Page, int] = {}
        self.late: dict[Page, StepId] = {}

    def hold(self, page: Page, already: int = 0) -> None:
        """One more; ``already`` hold it if it was not counted before."""
        self.counts[page] = self.counts.get(page, already) + 1

    def leave(self, page: Page, after: StepId) -> StepId:
        """One less, who asks to wait for step ``after``.  Returns the step to wait for in all, or ``HELD``."""
        count = self.counts[page] - 1
        if count:
            self.counts[page] = count
            if after > self.late.get(page, 0):
                self.late[page] = after
            return HELD
        del self.counts[page]
        return max(self.late.pop(page, 0), after)

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
