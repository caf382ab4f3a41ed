"""Pages that nobody owns and nobody may have yet, because a step in flight still reads or writes them.

Execution is asynchronous to decisions: when a request leaves, a step that names its pages may not have run.  Handing
such a page to somebody else would let two requests write it.  So it waits here under the last step that names it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from stepwell.core.errors import InvariantError
from stepwell.core.types import Page, StepId
from stepwell.memory.audit import Place

Run = TypeVar("Run", bound=Sequence[Page])
"""Pages that left together: a list, or a ``range`` where they are neighbours."""


class Quarantine(Generic[Run]):
    """Runs of pages by the step they wait for.  ``done`` is the last step known to be done; ``pages`` counts them.

    Holding costs O(1) a run; a step that frees nothing costs one comparison.
    """

    __slots__ = ("_by_step", "done", "pages")

    def __init__(self, done: StepId = 0) -> None:
        self.done = done
        self.pages = 0
        self._by_step: dict[StepId, list[Run]] = {}

    def hold(self, run: Run, after: StepId) -> bool:
        """Keep ``run`` until step ``after`` is done; ``False`` if it already is and the pages may be used at once."""
        if after <= self.done:
            return False
        self.pages += len(run)
        self._by_step.setdefault(after, []).append(run)
        return True

    def step_done(self, step: StepId) -> Sequence[Run]:
        """Steps up to ``step`` are done; the runs that waited for them, by step and then in order of arrival.

        Raises ``InvariantError`` if ``step`` is before one already reported: steps end in the order of their ids.
        """
        if step < self.done:
            raise InvariantError(f"step {step} is reported done after step {self.done}")
        self.done = step
        if not self._by_step:
            return ()
        runs: list[Run] = []
        for tag in sorted(tag for tag in self._by_step if tag <= step):
            runs += self._by_step.pop(tag)
        self.pages -= sum(map(len, runs))
        return runs

    def rows(self) -> list[tuple[StepId, list[Run]]]:
        """What waits, by step: for a snapshot."""
        return [(tag, list(self._by_step[tag])) for tag in sorted(self._by_step)]

    def restore(self, done: StepId, rows: Sequence[tuple[StepId, list[Run]]]) -> None:
        """Take over ``rows`` of a snapshot; ``check`` says whether they make sense."""
        self.done = done
        self._by_step = {tag: list(runs) for tag, runs in rows}
        self.pages = sum(len(run) for runs in self._by_step.values() for run in runs)

    def places(self) -> list[Place]:
        """The runs with their names, for ``audit.partition``; raises ``InvariantError`` if one is overdue."""
        for tag in self._by_step:
            if tag <= self.done:
                raise InvariantError(f"pages wait for step {tag} although step {self.done} is done")
        return [(f"the quarantine until step {tag}", run) for tag, runs in self.rows() for run in runs]
