"""Pages that nobody holds: the blank ones, as a stack, and those that a step in flight still names."""

from __future__ import annotations

from typing import Protocol

from stepwell.core.types import Page, StepId
from stepwell.memory import audit
from stepwell.memory.audit import Place
from stepwell.memory.quarantine import Quarantine
from stepwell.memory.snapshot import BlankState


class PagePool(Protocol):
    """Where ``PageTables`` takes pages from and gives them back to."""

    @property
    def free_pages(self) -> int:
        """How many ``take`` can give."""
        ...

    def take(self, count: int) -> list[Page]:
        """``count`` free pages, the last of them to be used first: so it does not matter how many are taken at once."""
        ...

    def give(self, pages: list[Page], after: StepId) -> None:
        """Blank pages, free when step ``after`` is done."""
        ...

    def keep(self, pages: list[Page], until: StepId) -> list[Page]:
        """Nobody holds ``pages`` any more, which others may have: keep those of use for what is in them, from step
        ``until`` on.  Returns the others, which are to be given."""
        ...

    def step_done(self, step: StepId) -> None: ...


class BlankPages:
    """The pages freed last are handed out first.  ``free_pages`` counts, ``returning`` are on their way back."""

    def __init__(self, pages: int) -> None:
        self.free_pages = pages
        self._free: list[Page] = list(range(pages))
        self.returning: Quarantine[list[Page]] = Quarantine()

    def take(self, count: int) -> list[Page]:
        cut = self.free_pages - count
        pages = self._free[cut:]
        del self._free[cut:]
        self.free_pages = cut
        return pages

    def give(self, pages: list[Page], after: StepId) -> None:
        if not self.returning.hold(pages, after):
            self._free += pages
            self.free_pages += len(pages)

    def keep(self, pages: list[Page], until: StepId) -> list[Page]:
        """None: what is in them is of no use."""
        return pages

    def step_done(self, step: StepId) -> None:
        """``InvariantError`` if ``step`` is before one already reported."""
        for pages in self.returning.step_done(step):
            self._free += pages
            self.free_pages += len(pages)

    def state(self) -> BlankState:
        """The state as it is, sharing its lists: encode it before anything changes."""
        return BlankState(self.returning.done, self._free, self.returning.rows())

    def restore(self, state: BlankState) -> None:
        """Become ``state``; whoever audits ``places`` says whether it makes sense."""
        self._free = list(state.free)
        self.free_pages = len(self._free)
        self.returning.restore(state.done, state.returning)

    def places(self) -> list[Place]:
        """For ``audit.partition``; raises ``InvariantError`` if a count is wrong or a page overdue."""
        audit.same("the count of free pages", self.free_pages, len(self._free))
        return [("the free list", self._free), *self.returning.places()]
