"""Writes a journal's timeline to a file, gzipped if its name says so; nothing is left behind if that fails."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec

from stepwell.core.errors import UserError
from stepwell.core.journal import Gap, Header
from stepwell.core.registry import make_allocator
from stepwell.core.snapshot import SchedulerSnapshot
from stepwell.core.types import FOREVER, NS_PER_S
from stepwell.sim.journal_read import MISFIT, Stretch, Told, config_of, misfit, stretches, turns
from stepwell.sim.timeline import DECISIONS, STEPS, Timeline

_PROCESS = 1


class Written(msgspec.Struct):
    """What a file holds: trace events, and the time they speak of (ns of the journal's clock)."""

    events: int = 0
    start_ns: int = FOREVER
    end_ns: int = 0


def write_timeline(
    journal: Path, out: Path, *, from_ns: int = 0, to_ns: int = FOREVER, told: Told | None = None
) -> Written:
    """Write what the journal that begins at ``journal`` tells of the time between; ``told`` hears of its being read.

    Raises ``UserError`` if the journal is damaged, is none, or tells of no such time.
    """
    if from_ns >= to_ns:
        raise UserError("the window ends before it begins", field="--to")
    parts = stretches(journal, told)
    if out.resolve() in [each.path.resolve() for part in parts for each in part.segments]:
        raise UserError(f"{out} is the journal itself", field="--out")
    written = Written()
    try:
        with _file(out) as file:
            _write(parts, _Sink(file, written), written, from_ns, to_ns)
            if not written.events:
                raise UserError(
                    f"the journal tells of {_seconds(written.start_ns)} to {_seconds(written.end_ns)} s", field="--from"
                )
    except MISFIT as error:
        raise misfit(journal, error) from None
    return written


def _seconds(at_ns: int) -> str:
    return f"{(0 if at_ns == FOREVER else at_ns) / NS_PER_S:g}"


class _Sink:
    """Events as elements of one JSON array, encoded as they come."""

    def __init__(self, file: BinaryIO, written: Written) -> None:
        self.raw = file.write
        self._written = written
        self._encode = msgspec.json.Encoder().encode

    def __call__(self, event: dict[str, Any]) -> None:
        self.raw(b",\n" if self._written.events else b"\n")
        self.raw(self._encode(event))
        self._written.events += 1


def _write(parts: Sequence[Stretch], sink: _Sink, written: Written, from_ns: int, to_ns: int) -> None:
    header = parts[0].header
    about = {"stepwell": header.version, "shell": header.shell, "policy": header.policy, "digest": header.digest}
    sink.raw(b'{"displayTimeUnit":"ms","otherData":')
    sink.raw(msgspec.json.encode(about) + b',"traceEvents":[')
    for part in parts:
        _stretch(part, sink, written, from_ns, to_ns)
    if written.events:
        for event in _names(header):
            sink(event)
    sink.raw(b"\n]}\n")


def _stretch(part: Stretch, sink: _Sink, written: Written, from_ns: int, to_ns: int) -> None:
    timeline = Timeline(sink, from_ns=from_ns, to_ns=to_ns, process=_PROCESS)
    snapshot = part.snapshot()
    if snapshot is not None:
        timeline.begin(snapshot, _pages(part, snapshot))
        written.start_ns = min(written.start_ns, snapshot.now_ns)
        written.end_ns = snapshot.now_ns
    for record in part.records():
        if isinstance(record, Gap):
            args = {"turns": record.turns, "reason": record.reason}
            timeline.lost(written.end_ns, args)
        for now_ns, events, instructions in turns(record):
            if now_ns > to_ns:
                timeline.end(to_ns)
                return
            timeline.observe(now_ns, events, instructions)
            written.start_ns = min(written.start_ns, now_ns)
            written.end_ns = now_ns
    if written.end_ns >= from_ns:
        timeline.end(written.end_ns)


def _pages(part: Stretch, snapshot: SchedulerSnapshot) -> int:
    """How many pages were in use then."""
    memory = config_of(part.header, str(part.segments[0].path)).memory
    allocator = make_allocator(memory)
    allocator.load(msgspec.json.decode(snapshot.allocator))
    return allocator.usage().used


def _names(header: Header) -> Iterator[dict[str, Any]]:
    """What the process and its tracks are called."""
    process = f"stepwell {header.policy} ({'simulated' if header.shell == 'sim' else 'live'})"
    yield {"ph": "M", "name": "process_name", "pid": _PROCESS, "args": {"name": process}}
    for track, name in ((STEPS, "steps"), (DECISIONS, "decisions")):
        yield {"ph": "M", "name": "thread_name", "pid": _PROCESS, "tid": track, "args": {"name": name}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": _PROCESS, "tid": track, "args": {"sort_index": track}}


@contextmanager
def _file(out: Path) -> Iterator[BinaryIO]:
    """The file, under another name until it is whole."""
    unfinished = out.with_name(out.name + ".part")
    try:
        with unfinished.open("wb") as raw:
            if out.suffix == ".gz":
                with gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as packed:
                    yield cast(BinaryIO, packed)
            else:
                yield raw
        unfinished.replace(out)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}", field="--out") from None
    finally:
        unfinished.unlink(missing_ok=True)
