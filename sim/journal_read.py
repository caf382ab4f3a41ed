"""Reads a journal for people: its turns in order, what it holds in numbers, and the summary of the run it records.

Nothing is decided again here (``sim.replay`` does that), so a journal of any length reads at the speed of its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from stepwell.core.config import Config
from stepwell.core.errors import UserError
from stepwell.core.events import Event, RunDone, StepDone, StepFailed, Submitted
from stepwell.core.instructions import Finished, Instruction, Launch, Rejected, Run
from stepwell.core.journal import Gap, Header, Record, Repeated, Turn
from stepwell.core.journal_file import Segment, open_journal, torn_bytes
from stepwell.core.registry import make_cost_model
from stepwell.core.snapshot import SchedulerSnapshot
from stepwell.core.types import RequestId
from stepwell.sim.cost.reach import reach_of
from stepwell.sim.extrapolation import ESTIMATED, MEASURED, Extrapolation, StepTimeSource
from stepwell.sim.metrics import RunMetrics
from stepwell.sim.step_reader import MeasuredStep, StepReader
from stepwell.sim.summary import Summary, summarise
from stepwell.sim.wording import named

Told = Callable[[int], None]
"""Progress: told now and then how many records have been read."""

TOLD_EVERY = 4096

SIMULATED = "sim"
"""The shell whose journals hold step times that were predicted."""


class Stretch(msgspec.Struct):
    """Segments that follow one another without a gap; only the first stretch of a whole journal begins at nothing."""

    segments: list[Segment]
    told: Told | None = None

    @property
    def header(self) -> Header:
        return self.segments[0].header

    @property
    def begins_late(self) -> bool:
        """Whether it begins with requests already there."""
        return bytes(self.header.snapshot) != b"null"

    def snapshot(self) -> SchedulerSnapshot | None:
        """The state it begins with."""
        if not self.begins_late:
            return None
        try:
            return msgspec.json.decode(self.header.snapshot, type=SchedulerSnapshot)
        except msgspec.DecodeError as error:
            raise UserError(f"{self.segments[0].path}: its snapshot is damaged ({error})") from None

    def records(self) -> Iterator[Record]:
        for segment in self.segments:
            for number, record in enumerate(segment.records()):
                if self.told is not None and not number % TOLD_EVERY:
                    self.told(number)
                yield record


def stretches(path: Path, told: Told | None = None) -> list[Stretch]:
    """The journal that begins at ``path``; ``told`` hears of its being read.

    Raises ``UserError`` if there is none or it is damaged.
    """
    try:
        segments = open_journal(path)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    found: list[Stretch] = []
    for segment in segments:
        follows = bool(found) and segment.header.segment == found[-1].segments[-1].header.segment + 1
        if follows and not segment.after_gap:
            found[-1].segments.append(segment)
        else:
            found.append(Stretch([segment], told))
    return found


class Extent(msgspec.Struct, frozen=True):
    """Which segments of a journal are there, and which requests it tells of from the beginning of what is left.

    ``carried`` are the requests in the first snapshot: what came before it is known of them in outline only.
    """

    first_segment: int = 0
    missing: list[tuple[int, int]] = []
    """Segments that are not there any more: first and last of each stretch of them."""
    carried: list[RequestId] = []


def extent(path: Path, parts: Sequence[Stretch]) -> Extent:
    """See ``Extent``.  Segments before ``path`` are not missing if that is itself a later one."""
    numbers = [each.header.segment for part in parts for each in part.segments]
    before = numbers[0] - 1 if parts[0].segments[0].path == path else -1
    missing = [(last + 1, next - 1) for last, next in pairwise([before, *numbers]) if next > last + 1]
    snapshot = parts[0].snapshot()
    return Extent(numbers[0], missing, sorted(each.id for each in snapshot.requests) if snapshot else [])


def where_it_begins(it: Extent, first: RequestId, last: RequestId) -> list[str]:
    """Sentences for a person; none if nothing is missing.  ``first`` and ``last`` are requests that it tells of."""
    told = []
    if it.first_segment:
        told.append(f"it begins with segment {it.first_segment}")
    if it.missing:
        spans = [str(a) if a == b else f"{a} to {b}" for a, b in it.missing]
        one = len(it.missing) == 1 and it.missing[0][0] == it.missing[0][1]
        told.append(f"{'segment' if one else 'segments'} {', '.join(spans)} {'is' if one else 'are'} missing")
    if it.carried:
        told.append(
            f"of earlier requests {named(it.carried)} {'is' if len(it.carried) == 1 else 'are'} known in outline,"
            " from its snapshot"
        )
    if told:
        told.append(f"it tells of requests {first} to {last}" if last else "it tells of no request at all")
    return told


def config_of(header: Header, name: str) -> Config:
    """The configuration a journal was recorded under."""
    try:
        return msgspec.convert(header.config, Config)
    except msgspec.ValidationError as error:
        raise UserError(f"{name}: the configuration in its header does not fit this version ({error})") from None


MISFIT = (KeyError, IndexError, ValueError)
"""What reading raises where records do not fit one another: a request that never arrived, a step never launched."""


def misfit(path: Path, error: Exception) -> UserError:
    """The journal was written by something else, or changed by hand."""
    return UserError(f"{path}: its records do not fit together ({type(error).__name__}: {error})")


Moment = tuple[int, Sequence[Event], Sequence[Instruction]]
"""Time, events and instructions of one turn."""


def turns(record: Record, *, jumps: bool = False) -> Iterator[Moment]:
    """The turns of a record; repeated steps one by one, or with ``jumps`` as one run where the record allows it."""
    if isinstance(record, Turn):
        yield record.now_ns, record.events, record.instructions
    elif isinstance(record, Repeated):
        times = record.done_ns()
        if jumps and not record.elapsed_ns:
            yield times[-1], [RunDone(record.step, times)], [Run(record.step + 1, len(times), record.growth)]
            return
        elapsed_ns = record.elapsed_ns or record.gaps_ns
        growth: list[list[int]] = [[] for _ in times]
        for offset, request, page in zip(*[iter(record.growth)] * 3, strict=True):
            growth[offset] += (request, page)
        for index, now_ns in enumerate(times):
            step = record.step + index
            yield now_ns, [StepDone(step, [], elapsed_ns[index])], [Launch(step + 1, True, growth[index])]


def steps_of(part: Stretch) -> list[MeasuredStep]:
    """The finished steps of a stretch in order, but for those whose shape it does not tell."""
    found: list[MeasuredStep] = []
    snapshot = part.snapshot()
    reader = StepReader(found.append, None if snapshot is None else [each.id for each in snapshot.requests])
    for record in part.records():
        for moment in turns(record):
            reader.observe(*moment)
    return found


class JournalStat(msgspec.Struct):
    """What a journal holds.  ``summary`` is of the last stretch; ``partial`` if that begins with requests there."""

    path: str
    header: Header
    segments: int = 0
    bytes: int = 0
    torn: bool = False
    """The last line is incomplete: a crash while writing."""
    torn_bytes: int = 0
    unfinished: int = 0
    """Requests that were there at the end."""
    extent: Extent = Extent()
    first_request: RequestId = 0
    last_request: RequestId = 0
    """It tells of those between, the ones of the first snapshot included."""
    records: int = 0
    turns: int = 0
    steps: int = 0
    requests: int = 0
    gaps: list[Gap] = []
    start_ns: int = 0
    end_ns: int = 0
    events: dict[str, int] = {}
    instructions: dict[str, int] = {}
    partial: bool = False
    summary: Summary | None = None


def stat(path: Path, told: Told | None = None) -> JournalStat:
    """Read the whole journal once.  Raises ``UserError`` naming file and line if it is damaged."""
    parts = stretches(path, told)
    found = JournalStat(str(path), parts[-1].header)
    found.extent = extent(path, parts)
    try:
        metrics = _read(parts, found)
    except MISFIT as error:
        raise misfit(path, error) from None
    found.torn_bytes = torn_bytes(parts[-1].segments[-1].path)
    found.torn = found.torn_bytes > 0
    found.partial = parts[-1].begins_late
    found.events = dict(sorted(found.events.items()))
    found.instructions = dict(sorted(found.instructions.items()))
    config = config_of(parts[-1].header, str(path))
    found.summary = summarise(metrics, config, partial=found.partial, step_times=_step_times(parts[-1], config))
    return found


def _step_times(part: Stretch, config: Config) -> StepTimeSource:
    """Whether a device took the times of the stretch, or what its cost model was fitted on."""
    if part.header.shell != SIMULATED:
        return MEASURED
    try:
        reach = reach_of(make_cost_model(config.cost))
    except UserError:  # a plugin that is not here
        return ESTIMATED
    if reach is None:
        return ESTIMATED
    counted = Extrapolation(reach)
    for step in steps_of(part):
        counted.step(step.shape)
    return counted.source()


def _read(parts: Sequence[Stretch], found: JournalStat) -> RunMetrics:
    """Count everything; returns the metrics of the last stretch."""
    first = True
    metrics = RunMetrics()
    live: set[RequestId] = set()
    for part in parts:
        metrics = RunMetrics()
        snapshot = part.snapshot()
        live = {each.id for each in snapshot.requests} if snapshot is not None else set()
        _tell_of(found, live)
        take = Latecomers(metrics).observe if part.begins_late else metrics.observe
        for segment in part.segments:
            found.segments += 1
            found.bytes += segment.path.stat().st_size
        for record in part.records():
            found.records += 1
            if isinstance(record, Gap):
                found.gaps.append(record)
            for now_ns, events, instructions in turns(record, jumps=not part.begins_late):
                if first:
                    found.start_ns, first = now_ns, False
                found.end_ns = now_ns
                _count(found, live, events, instructions)
                take(now_ns, events, instructions)
    found.unfinished = len(live)
    return metrics


def _tell_of(found: JournalStat, ids: Collection[RequestId]) -> None:
    if ids:
        found.first_request = min(found.first_request or min(ids), *ids)
        found.last_request = max(found.last_request, *ids)


def _count(
    found: JournalStat, live: set[RequestId], events: Sequence[Event], instructions: Sequence[Instruction]
) -> None:
    found.turns += 1
    for event in events:
        if type(event) is RunDone:
            steps = len(event.done_ns)
            found.turns += steps - 1
            found.steps += steps
            found.events["done"] = found.events.get("done", 0) + steps
            found.instructions["launch"] = found.instructions.get("launch", 0) + steps
            continue
        if type(event) is Submitted:
            found.requests += 1
            live.add(event.request)
            _tell_of(found, (event.request,))
        kind = tag_of(event)
        found.events[kind] = found.events.get(kind, 0) + 1
    for instruction in instructions:
        if type(instruction) is not Run:
            found.steps += type(instruction) is Launch
            if type(instruction) is Finished or type(instruction) is Rejected:
                live.discard(instruction.request)
            kind = tag_of(instruction)
            found.instructions[kind] = found.instructions.get(kind, 0) + 1


def tag_of(item: Event | Instruction) -> str:
    """The word by which a journal names it."""
    return str(item.__struct_config__.tag)


class Latecomers:
    """Feeds metrics from a record that begins in the middle: only requests that arrive in it are told of."""

    def __init__(self, metrics: RunMetrics) -> None:
        self._metrics = metrics
        self._known: dict[RequestId, None] = {}
        self._inflight = 0

    def observe(self, now_ns: int, events: Sequence[Event], instructions: Sequence[Instruction]) -> None:
        """One turn, steps one by one."""
        told: list[Event] = []
        for event in events:
            if isinstance(event, Submitted):
                self._known[event.request] = None
            elif isinstance(event, StepDone):
                if not self._inflight:
                    continue
                self._inflight -= 1
            elif isinstance(event, StepFailed):
                self._inflight = 0
            told.append(event)
        kept: list[Instruction] = []
        for instruction in instructions:
            if isinstance(instruction, Launch):
                self._inflight += 1
                kept.append(self._launch(instruction))
            elif getattr(instruction, "request", None) in self._known:
                kept.append(instruction)
        self._metrics.observe(now_ns, told, kept)

    def _launch(self, launch: Launch) -> Launch:
        known = self._known
        return Launch(
            launch.step,
            launch.decode,
            joined=[id for id in launch.joined if id in known],
            left=[id for id in launch.left if id in known],
            slices=[row for row in launch.slices if row[0] in known],
        )
