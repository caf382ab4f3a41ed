"""Replays a journal: drives a fresh scheduler with the recorded events and holds every instruction to the record."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path

import msgspec

from stepwell.core.build import build_scheduler
from stepwell.core.config import Config
from stepwell.core.errors import UserError
from stepwell.core.events import Event, RunDone, StepDone
from stepwell.core.instructions import Instruction, Launch, Run
from stepwell.core.journal import Header, Record, Repeated, Turn
from stepwell.core.journal_file import Segment, open_journal, torn_bytes
from stepwell.core.registry import complete
from stepwell.core.scheduler import Scheduler
from stepwell.core.snapshot import SchedulerSnapshot, restore
from stepwell.core.types import RequestId, StepId

Observer = Callable[[int, Sequence[Event], Sequence[Instruction]], None]


class Difference(msgspec.Struct, frozen=True):
    """The first decision that is not the recorded one.  ``request`` and ``step`` are 0 where none is concerned."""

    segment: str
    line: int
    now_ns: int
    step: StepId
    request: RequestId
    field: str
    recorded: str
    replayed: str

    def __str__(self) -> str:
        at = f"{self.segment}, line {self.line}: at {self.now_ns} ns"
        step = f", step {self.step}" if self.step else ""
        who = f", request {self.request}" if self.request else ""
        return f"{at}{step}{who}, {self.field}: recorded {self.recorded}, replayed {self.replayed}"


class ReplayReport(msgspec.Struct):
    """What a replay covered; ``difference`` is None if every decision was the recorded one.

    ``turns`` counts each repeated step as one.  ``gaps`` are places where records are missing: lost to a full disk, or
    in a segment that is not there any more.  ``torn_bytes``: of a last line only begun, which was ignored.
    ``unfinished``: requests that were there at the end, if there was no difference.
    """

    turns: int = 0
    steps: int = 0
    instructions: int = 0
    segments: int = 0
    gaps: int = 0
    torn_bytes: int = 0
    unfinished: int = 0
    difference: Difference | None = None


class _DifferentError(Exception):
    def __init__(self, difference: Difference) -> None:
        super().__init__(str(difference))
        self.difference = difference


def scheduler_of(header: Header, *, base: Path | None = None, name: str = "the journal") -> Scheduler:
    """The scheduler that a journal's header describes, at the state its segment starts from."""
    config = _config_of(header, base, name)
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


def _config_of(header: Header, base: Path | None, name: str) -> Config:
    """Also held to its digest: as it was written, or as this version reads it."""
    try:
        config = msgspec.convert(header.config, Config)
    except msgspec.ValidationError as error:
        raise UserError(f"{name}: the configuration in its header does not fit this version ({error})") from None
    written = hashlib.sha256(msgspec.json.encode(header.config, order="sorted")).hexdigest()
    if header.digest not in (written, config.digest) and header.digest != complete(config, base=base).digest:
        raise UserError(f"{name}: the configuration in the header does not match its digest")
    return config


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
            follows = replayer is not None and segment.header.segment == replayer.segment + 1 and not segment.after_gap
            if replayer is None or not follows:
                report.gaps += replayer is not None or segment.after_gap
                replayer = _Replayer(segment, report, base, observers)
            else:
                _config_of(segment.header, base, str(segment.path))
            report.torn_bytes += torn_bytes(segment.path)
            replayer.follow(segment, progress)
    except _DifferentError as error:
        report.difference = error.difference
    else:
        report.unfinished = len(replayer.scheduler.state.requests) if replayer is not None else 0
    return report


class _Replayer:
    """Drives one scheduler through consecutive segments."""

    def __init__(
        self, segment: Segment, report: ReplayReport, base: Path | None, observers: Sequence[Observer]
    ) -> None:
        self.scheduler = scheduler_of(segment.header, base=base, name=str(segment.path))
        self.report = report
        self.observers = observers
        self.segment = segment.header.segment
        self._name = ""
        self._line = 0

    def follow(self, segment: Segment, progress: Callable[[int], None] | None) -> None:
        """Replay one segment's records."""
        report = self.report
        report.segments += 1
        self.segment = segment.header.segment
        self._name = segment.path.name
        self._line = 1
        for record in segment.records():
            self._line += 1
            self._record(record)
            if progress is not None and not self._line & 1023:
                progress(report.turns)

    def _record(self, record: Record) -> None:
        if isinstance(record, Turn):
            self._turn(record.now_ns, record.events, record.instructions)
        elif isinstance(record, Repeated):
            self._repeated(record)

    def _repeated(self, record: Repeated) -> None:
        """In one go where the scheduler agrees that the steps repeat, and otherwise one by one as they were."""
        times = record.done_ns()
        steps, until_ns = self.scheduler.repeats.repeatable(len(times))
        if not record.elapsed_ns and 0 < steps == len(times) and times[-1] < until_ns:
            event = RunDone(record.step, times)
            out = self._handle(times[-1], [event])
            if out != [Run(record.step + 1, len(times), record.growth)]:
                self._compare_runs(record, out)
            self._count(times[-1], [event], out, len(times))
            return
        elapsed_ns = record.elapsed_ns or record.gaps_ns
        for offset, launch in enumerate(self._recorded(record)):
            done = StepDone(record.step + offset, [], elapsed_ns[offset])
            self._turn(times[offset], [done], [launch])

    def _recorded(self, record: Repeated) -> list[Launch]:
        try:
            if record.elapsed_ns and len(record.elapsed_ns) != len(record.gaps_ns):
                raise ValueError
            return _launches(record.step + 1, len(record.gaps_ns), record.growth)
        except (IndexError, ValueError):
            raise UserError(f"{self._name}, line {self._line}: a repeat that does not fit together") from None

    def _compare_runs(self, record: Repeated, out: Sequence[Instruction]) -> None:
        answer = out[0]
        assert isinstance(answer, Run)
        found = _launches(answer.step, answer.count, answer.growth)
        for now_ns, old, new in zip(record.done_ns(), self._recorded(record), found, strict=True):
            self._compare(now_ns, [old], [new])

    def _turn(self, now_ns: int, events: Sequence[Event], recorded: Sequence[Instruction]) -> None:
        replayed = self._handle(now_ns, events)
        if replayed != recorded:
            self._compare(now_ns, recorded, replayed)
        self._count(now_ns, events, replayed, 1)

    def _handle(self, now_ns: int, events: Sequence[Event]) -> list[Instruction]:
        step = self.scheduler.state.next_step
        try:
            out = self.scheduler.handle(now_ns, events)
        except UserError:
            raise  # a policy that is not installed here
        except Exception as error:
            refused = f"{type(error).__name__}: {error}"
            raise self._different(now_ns, step, 0, "events", "accepted", f"refused by {refused}") from error
        self.report.steps += self.scheduler.state.next_step - step
        return out

    def _count(self, now_ns: int, events: Sequence[Event], out: Sequence[Instruction], turns: int) -> None:
        self.report.turns += turns
        self.report.instructions += len(out) if turns == 1 else turns
        for observe in self.observers:
            observe(now_ns, events, out)

    def _compare(self, now_ns: int, recorded: Sequence[Instruction], replayed: Sequence[Instruction]) -> None:
        for old, new in zip_longest(recorded, replayed):
            if old == new:
                continue
            either = old if old is not None else new
            step = getattr(either, "step", 0)
            request = getattr(either, "request", 0)
            if type(old) is not type(new):
                raise self._different(now_ns, step, request, "instruction", _say(old), _say(new))
            for field in old.__struct_fields__:
                a, b = getattr(old, field), getattr(new, field)
                if a != b:
                    row, first, second = _first_row(field, a, b)
                    raise self._different(now_ns, step, request or row, f"{_word(old)}.{field}", first, second)

    def _different(
        self, now_ns: int, step: StepId, request: RequestId, field: str, recorded: str, replayed: str
    ) -> _DifferentError:
        return _DifferentError(
            Difference(self._name, self._line, now_ns, step, request, field, _short(recorded), _short(replayed))
        )


def _launches(step: StepId, count: int, growth: Sequence[int]) -> list[Launch]:
    """A run's repeated launches one by one; ``growth`` is flat: offset of the step, request, page, …"""
    flat: list[list[int]] = [[] for _ in range(count)]
    for offset, request, page in zip(growth[::3], growth[1::3], growth[2::3], strict=True):
        flat[offset] += (request, page)
    return [Launch(step + offset, True, pairs) for offset, pairs in enumerate(flat)]


def _word(instruction: Instruction) -> str:
    return type(instruction).__name__.lower()


def _say(instruction: Instruction | None) -> str:
    return "nothing" if instruction is None else repr(instruction)


def _first_row(field: str, a: object, b: object) -> tuple[RequestId, str, str]:
    """Narrow two lists down to their first different item, and the request it is about."""
    if not (isinstance(a, list) and isinstance(b, list)):
        return 0, repr(a), repr(b)
    if field == "growth":
        a, b = [list(zip(flat[::2], flat[1::2], strict=False)) for flat in (a, b)]
    for index, (old, new) in enumerate(zip_longest(a, b)):
        if old != new:
            row = old if old is not None else new
            request: RequestId = row if isinstance(row, int) else row[0]
            return request, *_narrow(f"[{index}]", old, new)
    return 0, repr(a), repr(b)


def _narrow(at: str, a: object, b: object) -> tuple[str, str]:
    """Two different items in words; of long ones the first that differs within them."""
    if isinstance(a, list | tuple) and isinstance(b, list | tuple) and max(len(repr(a)), len(repr(b))) > _LONGEST:
        for index, (old, new) in enumerate(zip_longest(a, b)):
            if old != new:
                return _narrow(f"{at}[{index}]", old, new)
    first, second = ("nothing" if each is None else repr(each) for each in (a, b))
    return f"{at} {first}", f"{at} {second}"


_LONGEST = 200
"""Characters of a value that are shown."""


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
