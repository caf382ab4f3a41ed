"""A stretch of a run, request by request and step by step: two contenders are run again, and looked at closely."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.core.errors import StepwellError, UserError
from stepwell.core.events import Event, Submitted
from stepwell.core.instructions import Instruction, Preempted
from stepwell.core.types import NS_PER_S, RequestId
from stepwell.sim.compare.result import Cell
from stepwell.sim.phases import GONE, Phases
from stepwell.sim.report.lookup import Found
from stepwell.sim.run import simulate
from stepwell.sim.scenario import read_scenario
from stepwell.sim.step_spans import StepSpan, StepSpans

REQUESTS = 48
"""So many requests are followed."""
STEPS = 150
"""So many steps are shown."""
_LONGEST_S = 600


class _EnoughError(Exception):
    """The window is over."""


class Window:
    """From ``from_ns`` on: the next ``REQUESTS`` to arrive until their ends, and the next ``STEPS`` steps.

    ``spans`` by request are (phase, start, end) in ns; ``preempted`` the times at which anybody had to give way.
    """

    def __init__(self, label: str, from_ns: int, token_budget: int) -> None:
        self.label = label
        self.from_ns = from_ns
        self.token_budget = token_budget
        self.spans: dict[RequestId, list[tuple[str, int, int]]] = {}
        self.arrivals: dict[RequestId, tuple[int, str]] = {}
        """When, and of which class."""
        self.steps: list[StepSpan] = []
        self.preempted: list[int] = []
        self._open: dict[RequestId, tuple[str, int]] = {}
        self._phases = Phases(self._phase)
        self._spans = StepSpans(self._step)

    def observe(self, now_ns: int, events: Sequence[Event], instructions: Sequence[Instruction]) -> None:
        """Take in one turn; stops the run when there is nothing more to see."""
        if now_ns >= self.from_ns:
            for event in events:
                if isinstance(event, Submitted) and len(self.arrivals) < REQUESTS:
                    self.arrivals[event.request] = (now_ns, event.klass)
                    self.spans[event.request] = []
            self.preempted += [now_ns for each in instructions if isinstance(each, Preempted)]
        self._spans.observe(now_ns, events, instructions)
        self._phases.observe(now_ns, events, instructions)
        followed = len(self.arrivals) == REQUESTS and not self._open and len(self.steps) == STEPS
        if followed or now_ns > self.from_ns + _LONGEST_S * NS_PER_S:
            raise _EnoughError

    def _phase(self, now_ns: int, id: RequestId, phase: str) -> None:
        if id not in self.arrivals:
            return
        before = self._open.pop(id, None)
        if before is not None and now_ns > before[1]:
            self.spans[id].append((*before, now_ns))
        if phase != GONE:
            self._open[id] = (phase, now_ns)

    def _step(self, span: StepSpan) -> None:
        if span.start_ns >= self.from_ns and len(self.steps) < STEPS:
            self.steps.append(span)


def windows(found: Found) -> list[Window]:
    """The baseline and the best other contender at the point in focus, from where the baseline's line has grown long.

    Raises ``UserError`` if the scenario is not there any more, or not what it was.
    """
    winner = found.best(found.focus, found.judged)
    other = winner if winner != found.baseline else found.rival(winner)
    labels = list(dict.fromkeys([found.baseline, other]))
    cells = [cell for label in labels for cell in found.cells(label, found.focus)[:1]]
    if not cells:
        raise UserError("no run of them ended well")
    file = found.comparison.scenario or None
    from_ns = _begins(cells[0])
    return [_seen(cell, file, from_ns) for cell in cells]


def _begins(cell: Cell) -> int:
    """When the line first reaches a third of its longest, in ns."""
    waiting = cell.over_time.waiting
    longest = max(waiting, default=0)
    at = next((k for k, count in enumerate(waiting) if 3 * count >= longest), 0)
    return round(cell.over_time.time_s[at] * NS_PER_S) if waiting else 0


def _seen(cell: Cell, file: str | None, from_ns: int) -> Window:
    try:
        resolved = read_scenario(file, overrides=cell.overrides)
        window = Window(cell.contender, from_ns, resolved.config.scheduler.token_budget)
        result = simulate(resolved, observers=[window.observe])
        if result.summary.steps != cell.summary.steps:
            raise UserError("the scenario is not any more what it was when it was run")
    except _EnoughError:
        pass
    except (StepwellError, OSError) as error:
        raise UserError(f"{cell.contender} could not be run again: {error}") from None
    return window
