"""``read_trace``: a file of recorded requests becomes a workload, and every row is accounted for.

The rules, the same for every format:

- the number of prompt tokens is a positive whole number; 0 is **refused** (no engine accepts an empty prompt);
- the number of output tokens is a whole number; 0 (how traces write a failed request) is **dropped**: there is nothing
  to generate, and no time per output token;
- **refused** as well: a negative or blank number, ``NaN``, ``inf``, a fraction (even ``12.0``), a sign, a thousands
  separator, a quote, more than 2^31 - 1 tokens; a time that does not parse; a row with too few or too many fields; a
  blank line, unless only blank lines follow it; bytes that are not UTF-8;
- a byte order mark at the start and lines ending CRLF are accepted, as is a last line without an end;
- rows out of order in time are sorted and counted; the sort is stable, so equal times keep the order of the file;
- a missing column is refused, naming it, whatever else is asked for;
- a refused row stops the import with file, line and reason; with ``skip_bad`` it is left out, counted and noted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from stepwell.core.errors import UserError
from stepwell.sim.workload.azure import AZURE
from stepwell.sim.workload.mooncake import MOONCAKE, bucket_width_ns, debucketed
from stepwell.sim.workload.request import NOTES_LIMIT, RowNote, RowReport, TraceRequest, Workload
from stepwell.sim.workload.rows import Format, Row, RowError, RowParser, shown
from stepwell.sim.workload.simple import SIMPLE

FORMATS: dict[str, Format] = {format.name: format for format in (AZURE, MOONCAKE, SIMPLE)}

_LONGEST_LINE = 1 << 24


def read_trace(
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    limit: int | None = None,
    skip_bad: bool = False,
    debucket: bool = False,
) -> Workload:
    """Read a trace file by the rules above.

    ``format``: ``azure``, ``mooncake`` or ``simple``; found from the first line if not given.  ``limit``: keep the
    first so many requests in order of time.  ``debucket``: spread arrivals that share a coarse stamp (Mooncake only).
    Raises ``UserError``.
    """
    path = Path(path)
    if limit is not None and limit < 1:
        raise UserError(f"must be at least 1, not {limit}", field="limit")
    try:
        with path.open("rb") as file:
            lines = _lines(path, file)
            number, first = next(lines, (1, ""))
            chosen = _format(path, first, format)
            if debucket and not chosen.debucket:
                raise UserError(f"{path}: the format {chosen.name!r} has no buckets to spread", field="debucket")
            try:
                parse = chosen.open(first)
            except RowError as error:
                raise UserError(f"{path}, line {number}: {error.message}", field="trace") from None
            intake = _Intake(path, skip_bad)
            if not chosen.header:
                intake.take(parse, number, first)
            for number, line in lines:
                intake.take(parse, number, line)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}", field="trace") from None
    return _workload(path, chosen, intake, limit, debucket)


def _lines(path: Path, file: BinaryIO) -> Iterator[tuple[int, str]]:
    """Numbered lines without their ends; blank lines at the end of the file are left out.

    A line that is not UTF-8 comes with its bad bytes as U+FFFD, which the intake refuses.
    """
    blanks: list[int] = []
    for number, raw in enumerate(iter(lambda: file.readline(_LONGEST_LINE), b""), start=1):
        if len(raw) == _LONGEST_LINE and not raw.endswith(b"\n"):
            raise UserError(f"{path}, line {number}: longer than {_LONGEST_LINE} bytes", field="trace")
        line = raw.decode("utf-8-sig" if number == 1 else "utf-8", errors="replace").rstrip("\r\n")
        if not line.strip():
            blanks.append(number)
            continue
        for blank in blanks:
            yield blank, ""
        blanks.clear()
        yield number, line


def _format(path: Path, first: str, name: str | None) -> Format:
    if not first.strip():
        raise UserError(f"{path}: {'line 1 is blank' if first or path.stat().st_size else 'is empty'}", field="trace")
    known = "; ".join(f"{each.name} ({each.looks})" for each in FORMATS.values())
    if name is not None:
        if name not in FORMATS:
            raise UserError(f"unknown trace format {name!r}; known: {known}", field="format")
        return FORMATS[name]
    for each in FORMATS.values():
        if each.recognises(first):
            return each
    raise UserError(f"{path}, line 1: no known trace format begins with {shown(first)}; known: {known}", field="trace")


class _Intake:
    """Collects rows and keeps the books."""

    def __init__(self, path: Path, skip_bad: bool) -> None:
        self.path = path
        self.skip_bad = skip_bad
        self.rows: list[Row] = []
        self.read = self.dropped = self.refused = self.unsorted = 0
        self.latest_ns = -1
        self.notes: list[RowNote] = []

    def take(self, parse: RowParser, number: int, line: str) -> None:
        self.read += 1
        try:
            if not line:
                raise RowError("the line is blank")
            if "\ufffd" in line:
                raise RowError("the line is not UTF-8")
            row = parse(line)
            if row.prompt_tokens == 0:
                raise RowError("no prompt tokens: an empty prompt cannot be served")
        except RowError as error:
            if not self.skip_bad:
                raise UserError(f"{self.path}, line {number}: {error.message}", field="trace") from None
            self.refused += 1
            self._note(RowNote(number, "refused", error.message))
            return
        if row.output_tokens == 0:
            self.dropped += 1
            self._note(RowNote(number, "dropped", "no output tokens: nothing to generate"))
            return
        if row.time_ns < self.latest_ns:
            self.unsorted += 1
        else:
            self.latest_ns = row.time_ns
        self.rows.append(row)

    def _note(self, note: RowNote) -> None:
        if len(self.notes) < NOTES_LIMIT:
            self.notes.append(note)


def _workload(path: Path, chosen: Format, intake: _Intake, limit: int | None, debucket: bool) -> Workload:
    if not intake.rows:
        raise UserError(
            f"{path}: no row can be used ({intake.read} read, {intake.dropped} dropped, {intake.refused} refused)",
            field="trace",
        )
    rows = sorted(intake.rows, key=lambda row: row.time_ns)
    times = [row.time_ns for row in rows]
    notes: list[str] = []
    if debucket:
        width_ns = bucket_width_ns(times)
        times = debucketed(times, width_ns)
        notes.append(f"arrivals of one stamp were spread evenly over {width_ns / 1e9:g} s")
    if chosen.from_zero:
        origin_ns = times[0]
        times = [time_ns - origin_ns for time_ns in times]
    if limit is not None and limit < len(rows):
        notes.append(f"limited to the first {limit} of {len(rows)} requests")
    requests = [
        TraceRequest(time_ns, row.prompt_tokens, row.output_tokens, keys=row.keys, program=row.program)
        for time_ns, row in zip(times[:limit], rows, strict=False)
    ]
    keyless = sum(not request.keys for request in requests)
    if chosen.key_tokens and 0 < keyless < len(requests):
        notes.append(f"{keyless} requests have no prefix identity: prefix reuse comes out too low")
    return Workload(
        name=path.stem,
        requests=requests,
        report=_report(path, chosen, intake),
        key_tokens=chosen.key_tokens if keyless < len(requests) else 0,
        notes=notes,
    )


def _report(path: Path, chosen: Format, intake: _Intake) -> RowReport:
    return RowReport(
        source=path.name,
        format=chosen.name,
        rows=intake.read,
        used=len(intake.rows),
        dropped=intake.dropped,
        refused=intake.refused,
        notes=intake.notes,
        unsorted=intake.unsorted,
    )
