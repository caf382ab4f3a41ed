"""Replays a journal: drives a fresh scheduler with the recorded events and holds every instruction to the record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path

import msgspec

from stepwell.core.build import build_scheduler
from stepwell.core.config import Config
from stepwell.core.errors import InvariantError, UserError
from stepwell.core.events import Event, RunDone, StepDone
from stepwell.core.instructions import Instruction, Launch, Run
from stepwell.core.journal import Gap, Header, Record, Repeated, Turn
from stepwell.core.journal_file import Segment, open_journal
from stepwell.core.scheduler import Scheduler
from stepwell.core.snapshot import SchedulerSnapshot, restore
from stepwell.core.types import RequestId, StepId

Observer = Callable[[int, Sequence[Event], Sequence[Instruction]], None]


class Difference(msgspec.Struct, frozen=True):
    """The first decision that is not the recorded one.  ``request`` and ``step`` are 0 where none is concerned."""

    segment: str
    turn: int
    now_ns: int
    step: StepId
    request: RequestId
    field: str
    recorded: str
    replayed: str

    def __str__(self) -> str:
        at = f"turn {self.turn} at {self.now_ns} ns, step {self.step}"
        who = f", request {self.request}" if self.request else ""
        return f"{at}{who}, {self.field}: recorded {self.recorded}, replayed {self.replayed} ({self.segment})"


class ReplayReport(msgspec.Struct):
    """What a replay covered; ``difference`` is None if every decision was the recorded one."""

    turns: int = 0
    steps: int = 0
    instructions: int = 0
    segments: int = 0
    gaps: int = 0
    difference: Difference | None = None


class _DifferentError(Exception):
    def __init__(self, difference: Difference) -> None:
        super().__init__(str(difference))
        self.difference = difference


def scheduler_of(header: Header, *, base: Path | None = None, name: str = "the journal") -> Scheduler:
    """The scheduler that a journal's header describes, at the state its segment starts from."""
    try:
        config = msgspec.convert(header.config, Config)
    except msgspec.ValidationError as error:
        raise UserError(f"{name}: the configuration in its header does not fit this version ({error})") from None
    scheduler = build_scheduler(config, base=base)
    if bytes(header.snapshot) != b"null":
        try:
            snapshot = msgspec.json.decode(header.snapshot, type=SchedulerSnapshot)
        except msgspec.DecodeError as error:
            raise UserError(f"{name}: its snapshot is damaged ({error})") from None
        restore(scheduler, snapshot)
    elif (header.policy, header.options) != (scheduler.policy_name, scheduler.policy_options):
        raise UserError(f"{name}: its header names policy {header.policy!r}, its configuration another")
    return scheduler


def replay(
    path: Path,
    *,
    base: Path | None = None,
    observers: Sequence[Observer] = (),
    progress: Callable[[int], None] | None = None,
) -> ReplayReport:
    """Replay the journal that begins at ``path``; stops at the first difference.

    Raises ``UserError`` for a damaged journal.  A segment after a gap starts from its own snapshot.
    """
    report = ReplayReport()
    replayer: _Replayer | None = None
    try:
        for segment in open_journal(path):
            report.segments += 1
            if replayer is None or replayer.after_gap or segment.header.segment != replayer.segment + 1:
                replayer = _Replayer(segment, report, base, observers)
            replayer.follow(segment, progress)
    except _DifferentError as error:
        report.difference = error.difference
    return report


class _Replayer:
    """Drives one scheduler through consecutive segments."""

    def __init__(
        self, segment: Segment, report: ReplayReport, base: Path | None, observers: Sequence[Observer]
    ) -> None:
        self.scheduler = scheduler_of(segment.header, base=base, name=str(segment.path))
        self.report = report
        self.observers = observers
        self.after_gap = False
        self.segment = segment.header.segment
        self._name = ""

    def follow(self, segment: Segment, progress: Callable[[int], None] | None) -> None:
        """Replay one segment's records."""
        self.segment = segment.header.segment
        self._name = segment.path.name
        for number, record in enumerate(segment.records()):
            self._record(record)
            if progress is not None and not number & 1023:
                progress(self.report.turns)

    def _record(self, record: Record) -> None:
        if isinstance(record, Turn):
            self._turn(record.now_ns, record.events, record.instructions)
        elif isinstance(record, Repeated):
            self._repeated(record)
        elif isinstance(record, Gap):
            self.after_gap = True
            self.report.gaps += 1

    def _repeated(self, record: Repeated) -> None:
        """Step by step as they were recorded, or in one go where the scheduler agrees that they repeat."""
        times = record.done_ns()
        steps, until_ns = self.scheduler.repeatable(len(times))
        if not record.elapsed_ns and steps == len(times) and times[-1] < until_ns:
            self._turn(times[-1], [RunDone(record.step, times)], [Run(record.step + 1, record.growth)])
            return
        elapsed_ns = record.elapsed_ns or record.gaps_ns
        for index, now_ns in enumerate(times):
            step = record.step + index
            done = StepDone(step, [], elapsed_ns[index])
            self._turn(now_ns, [done], [Launch(step + 1, True, record.growth[index])])

    def _turn(self, now_ns: int, events: Sequence[Event], recorded: Sequence[Instruction]) -> None:
        report = self.report
        report.turns += 1
        report.instructions += len(recorded)
        step = self.scheduler.state.next_step
        try:
            replayed = self.scheduler.handle(now_ns, events)
        except InvariantError as error:
            raise self._different(now_ns, step, 0, "events", "accepted", f"refused: {error}") from None
        if replayed != recorded:
            self._compare(now_ns, step, recorded, replayed)
        report.steps += self.scheduler.state.next_step - step
        for observe in self.observers:
            observe(now_ns, events, replayed)

    def _compare(
        self, now_ns: int, step: StepId, recorded: Sequence[Instruction], replayed: Sequence[Instruction]
    ) -> None:
        for old, new in zip_longest(recorded, replayed):
            if old == new:
                continue
            step = getattr(old or new, "step", step)
            request = getattr(old or new, "request", 0)
            if type(old) is not type(new):
                raise self._different(now_ns, step, request, "instruction", _say(old), _say(new))
            for field in old.__struct_fields__:
                a, b = getattr(old, field), getattr(new, field)
                if a != b:
                    row, first, second = _first_row(a, b)
                    raise self._different(now_ns, step, request or row, f"{_word(old)}.{field}", first, second)

    def _different(
        self, now_ns: int, step: StepId, request: RequestId, field: str, recorded: str, replayed: str
    ) -> _DifferentError:
        return _DifferentError(
            Difference(self._name, self.report.turns, now_ns, step, request, field, recorded, replayed)
        )


def _word(instruction: Instruction) -> str:
    return type(instruction).__name__.lower()


def _say(instruction: Instruction | None) -> str:
    return "nothing" if instruction is None else repr(instruction)


def _first_row(a: object, b: object) -> tuple[RequestId, str, str]:
    """Narrow two lists down to their first different item, and the request it is about, if it says so."""
    if not (isinstance(a, list) and isinstance(b, list)):
        return 0, repr(a), repr(b)
    for index, (old, new) in enumerate(zip_longest(a, b)):
        if old != new:
            row = old if old is not None else new
            request = row[0] if isinstance(row, tuple) else row if isinstance(row, int) else 0
            return request, f"[{index}] {old!r}", f"[{index}] {new!r}"
    return 0, repr(a), repr(b)
