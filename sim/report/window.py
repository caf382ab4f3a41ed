"""A stretch of a run, request by request and step by step: two contenders are run again, and looked at closely."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from stepwell.core.errors import StepwellError, UserError
from stepwell.core.events import Event, Submitted
from stepwell.core.instructions import Instruction, Preempted
from stepwell.core.types import NS_PER_S, RequestId
from stepwell.sim.closed_loop import ClosedLoop
from stepwell.sim.compare.result import Cell
from stepwell.sim.phases import GONE, Phases
from stepwell.sim.report.lookup import Found
from stepwell.sim.run import simulate
from stepwell.sim.scenario import load_workload, read_scenario
from stepwell.sim.step_spans import StepSpan, StepSpans
from stepwell.sim.workload.request import TraceRequest

REQUESTS = 48
"""So many requests are followed."""
STEPS = 150
"""So many steps are shown."""
_LONGEST_S = 600


class _EnoughError(Exception):
    """The window is over."""


class Window:
    """Around ``peak_ns``: ``REQUESTS`` requests from arrival to end, and ``STEPS`` steps; half of both from before.

    Requests go by their place in ``requests``, those of the workload, as ids differ between policies where requests
    follow others.  ``wanted``: the places to follow, whenever they arrive, in place of those around the peak.
    ``spans`` by place are (phase, start, end) in ns; ``preempted`` the times at which anybody had to give way.
    """

    def __init__(
        self,
        label: str,
        peak_ns: int,
        token_budget: int,
        requests: Sequence[TraceRequest],
        wanted: Collection[int] | None = None,
    ) -> None:
        self.label = label
        self.peak_ns = peak_ns
        self.token_budget = token_budget
        self.spans: dict[int, list[tuple[str, int, int]]] = {}
        self.arrivals: dict[int, tuple[int, str]] = {}
        """When, and of which class."""
        self.steps: list[StepSpan] = []
        self.preempted: list[int] = []
        self._wanted = wanted
        self._late = 0
        """So many of them have arrived after the peak."""
        self._loop = ClosedLoop(requests)
        self._open: dict[int, tuple[str, int]] = {}
        self._phases = Phases(self._phase)
        self._spans = StepSpans(self._step)

    def observe(self, now_ns: int, events: Sequence[Event], instructions: Sequence[Instruction]) -> None:
        """Take in one turn; stops the run when there is nothing more to see."""
        self._loop.arrive(now_ns)
        for event in events:
            if isinstance(event, Submitted):
                self._arrive(now_ns, self._loop.places[event.request - 1], event.klass)
        self.preempted += [now_ns for each in instructions if isinstance(each, Preempted)]
        self._spans.observe(now_ns, events, instructions)
        self._phases.observe(now_ns, events, instructions)
        self._loop.follow(now_ns, instructions)
        all_there = self._late == REQUESTS // 2 if self._wanted is None else len(self.arrivals) == len(self._wanted)
        followed = all_there and not self._open and len(self.steps) == STEPS
        if (followed and now_ns > self.peak_ns) or now_ns > self.peak_ns + _LONGEST_S * NS_PER_S:
            raise _EnoughError

    def _arrive(self, now_ns: int, place: int, klass: str) -> None:
        """Follow it; around the peak, let go of the earliest for it while less than half are from after the peak."""
        if self._wanted is not None:
            if place not in self._wanted:
                return
        else:
            if self._late == REQUESTS // 2:
                return
            self._late += now_ns > self.peak_ns
            if len(self.arrivals) == REQUESTS:
                earliest = next(iter(self.arrivals))
                del self.arrivals[earliest], self.spans[earliest]
                self._open.pop(earliest, None)
        self.arrivals[place] = (now_ns, klass)
        self.spans[place] = []

    def _phase(self, now_ns: int, id: RequestId, phase: str) -> None:
        place = self._loop.places[id - 1]
        if place not in self.arrivals:
            return
        before = self._open.pop(place, None)
        if before is not None and now_ns > before[1]:
            self.spans[place].append((*before, now_ns))
        if phase != GONE:
            self._open[place] = (phase, now_ns)

    def _step(self, span: StepSpan) -> None:
        if span.end_ns <= self.peak_ns and len(self.steps) == STEPS // 2:
            del self.steps[0]
        if len(self.steps) < STEPS:
            self.steps.append(span)


def windows(found: Found) -> list[Window]:
    """The baseline and the best other contender at the point in focus, around the time of the baseline's longest line.

    Raises ``UserError`` if the scenario is not there any more, or not what it was.
    """
    winner, rival, _ = found.verdict()
    other = winner if winner != found.baseline else rival
    labels = list(dict.fromkeys([found.baseline, other]))
    cells = [cell for label in labels for cell in found.cells(label, found.focus)[:1]]
    if not cells:
        raise UserError("no run of them ended well")
    file = found.comparison.scenario or None
    peak_ns = _peak(cells[0])
    first = _seen(cells[0], file, peak_ns)
    return [first, *(_seen(cell, file, peak_ns, first.arrivals) for cell in cells[1:])]


def _peak(cell: Cell) -> int:
    """When the line is longest, in ns."""
    waiting = cell.over_time.waiting
    return round(cell.over_time.time_s[waiting.index(max(waiting))] * NS_PER_S) if waiting else 0


def _seen(cell: Cell, file: str | None, peak_ns: int, wanted: Collection[int] | None = None) -> Window:
    try:
        resolved = read_scenario(file, overrides=cell.overrides)
        workload = load_workload(resolved)
        window = Window(cell.contender, peak_ns, resolved.config.scheduler.token_budget, workload.requests, wanted)
        result = simulate(resolved, workload=workload, observers=[window.observe])
        if result.summary.steps != cell.summary.steps:
            raise UserError("the scenario is not any more what it was when it was run")
    except _EnoughError:
        pass
    except (StepwellError, OSError) as error:
        raise UserError(f"{cell.contender} could not be run again: {error}") from None
    return window
