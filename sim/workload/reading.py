"""How a trace format presents itself, and the one way in which formats of lines are read.

The rules that hold for all of them are in ``trace``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from stepwell.core.errors import UserError
from stepwell.sim.workload.request import NOTES_LIMIT, RowNote, RowReport, TraceRequest, Workload, in_order
from stepwell.sim.workload.rows import RowError

LONGEST_LINE = 1 << 24

RowParser = Callable[[str], TraceRequest]
"""Turns one line, without its end, into a request; raises ``RowError``."""


class NoOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of a format that has nothing to choose."""


class Reading(msgspec.Struct, frozen=True):
    """What was asked for.  ``options`` is an instance of the format's own struct."""

    skip_bad: bool = False
    debucket: bool = False
    limit: int | None = None
    options: Any = NoOptions()


class Format(msgspec.Struct, frozen=True):
    """A trace format.

    ``looks`` shows how a file begins, ``recognises`` says whether one does, from the first line (or what of it is in
    the first 64 KiB).  ``read`` raises ``UserError``.  ``options`` is a frozen struct of what may be chosen.
    ``bucket_ns`` is how far apart the format's stamps are at most, if they are coarse; 0: they are not.
    """

    name: str
    looks: str
    recognises: Callable[[str], bool]
    read: Callable[[Path, Format, Reading], Workload]
    options: type[msgspec.Struct] = NoOptions
    bucket_ns: int = 0


def line_format(
    name: str,
    looks: str,
    recognises: Callable[[str], bool],
    open: Callable[[str], RowParser],
    *,
    header: bool = True,
    key_tokens: int = 0,
    from_zero: bool = False,
    bucket_ns: int = 0,
    unanswered: str = "no output tokens: nothing to generate",
) -> Format:
    """A format of one request a line.  ``open`` makes the parser from the first line, or raises ``RowError``.

    ``header``: the first line is no request.  ``from_zero``: the format's times are dates, so the workload counts from
    its first arrival.  ``unanswered`` is why a row without output tokens is dropped.
    """

    def read(path: Path, format: Format, reading: Reading) -> Workload:
        intake = Intake(path, reading.skip_bad, unanswered=unanswered)
        with path.open("rb") as file:
            lines = numbered_lines(path, file)
            number, first = next(lines, (1, ""))
            try:
                parse = open(first)
            except RowError as error:
                raise UserError(f"{path}, line {number}: {error.message}", field="trace") from None
            if not header:
                intake.take(parse, number, first)
            for number, line in lines:
                intake.take(parse, number, line)
        return intake.workload(format, reading, key_tokens=key_tokens, from_zero=from_zero)

    return Format(name, looks, recognises, read, bucket_ns=bucket_ns)


def numbered_lines(path: Path, file: BinaryIO) -> Iterator[tuple[int, str]]:
    """Numbered lines without their ends; blank lines at the end of the file are left out.

    A line that is not UTF-8 comes with its bad bytes as U+FFFD, which the intake refuses.
    """
    blanks: list[int] = []
    for number, raw in enumerate(iter(lambda: file.readline(LONGEST_LINE), b""), start=1):
        if len(raw) == LONGEST_LINE and not raw.endswith(b"\n"):
            raise UserError(f"{path}, line {number}: longer than {LONGEST_LINE} bytes", field="trace")
        line = raw.decode("utf-8-sig" if number == 1 else "utf-8", errors="replace").rstrip("\r\n")
        if not line.strip():
            blanks.append(number)
            continue
        for blank in blanks:
            yield blank, ""
        blanks.clear()
        yield number, line


class Intake:
    """Collects the requests of a file and keeps the books.  ``unit`` is what it counts: lines, or conversations."""

    def __init__(
        self,
        path: Path,
        skip_bad: bool,
        *,
        unit: str = "line",
        unanswered: str = "no output tokens: nothing to generate",
    ) -> None:
        self.path = path
        self.requests: list[TraceRequest] = []
        self._skip_bad = skip_bad
        self._unit = unit
        self._unanswered = unanswered
        self._read = self._dropped = self._refused = self._unsorted = 0
        self._latest_ns = -1
        self._notes: list[RowNote] = []

    def take(self, parse: RowParser, number: int, line: str) -> None:
        """One line."""
        try:
            if not line:
                raise RowError("the line is blank")
            if "\ufffd" in line:
                raise RowError("the line is not UTF-8")
            request = parse(line)
        except RowError as error:
            self.refuse(number, error)
            return
        self.add(number, request)

    def add(self, number: int, request: TraceRequest) -> None:
        """A request that was read: used, dropped or refused."""
        if request.prompt_tokens == 0:
            self.refuse(number, RowError("no prompt tokens: an empty prompt cannot be served"))
            return
        if request.output_tokens == 0:
            self.drop(number, self._unanswered)
            return
        self._read += 1
        if request.arrival_ns < self._latest_ns:
            self._unsorted += 1
        else:
            self._latest_ns = request.arrival_ns
        self.requests.append(request)

    def drop(self, number: int, reason: str) -> None:
        """A row that is as it should be, and of no use."""
        self._read += 1
        self._dropped += 1
        self._note(RowNote(number, "dropped", reason))

    def refuse(self, number: int, error: RowError) -> None:
        """A row that cannot be used: raises ``UserError``, or counts it if that was asked for."""
        if not self._skip_bad:
            raise UserError(f"{self.path}, {self._unit} {number}: {error.message}", field="trace") from None
        self._read += 1
        self._refused += 1
        self._note(RowNote(number, "refused", error.message))

    def _note(self, note: RowNote) -> None:
        if len(self._notes) < NOTES_LIMIT:
            self._notes.append(note)

    def workload(
        self,
        format: Format,
        reading: Reading,
        *,
        key_tokens: int = 0,
        from_zero: bool = False,
        notes: Sequence[str] = (),
    ) -> Workload:
        """What came in; its times are spread and shifted as asked.  Raises ``UserError`` if it is nothing."""
        if not self.requests:
            counts = f"{self._read} read, {self._dropped} dropped, {self._refused} refused"
            raise UserError(f"{self.path}: no row can be used ({counts})", field="trace")
        requests = in_order(self.requests)
        told: list[str] = []
        if reading.debucket:
            told.append(_debucket(requests, format.bucket_ns))
        if from_zero:
            origin_ns = requests[0].arrival_ns
            for request in requests:
                request.arrival_ns -= origin_ns
        keyless = sum(not request.keys for request in requests)
        if key_tokens and 0 < keyless < len(requests):
            told.append(f"{keyless} requests have no prefix identity: prefix reuse comes out too low")
        return Workload(
            name=self.path.stem,
            requests=requests,
            report=self.report(format),
            key_tokens=key_tokens if keyless < len(requests) else 0,
            notes=[*told, *notes],
        )

    def report(self, format: Format) -> RowReport:
        return RowReport(
            source=self.path.name,
            format=format.name,
            rows=self._read,
            used=len(self.requests),
            dropped=self._dropped,
            refused=self._refused,
            notes=self._notes,
            unsorted=self._unsorted,
            unit=self._unit,
        )


def _debucket(requests: list[TraceRequest], widest_ns: int) -> str:
    """Spread those that share a stamp, which ascend; returns the note of it."""
    times = [request.arrival_ns for request in requests]
    width_ns = bucket_width_ns(times, widest_ns)
    for request, time_ns in zip(requests, debucketed(times, width_ns), strict=True):
        request.arrival_ns = time_ns
    return f"arrivals of one stamp were spread evenly over {width_ns / 1e9:g} s"


def bucket_width_ns(times_ns: list[int], widest_ns: int) -> int:
    """The smallest distance between distinct times, at most ``widest_ns``; ``times_ns`` ascend."""
    distinct = [time for time, _ in groupby(times_ns)]
    gaps = [after - before for before, after in pairwise(distinct)]
    return min([*gaps, widest_ns])


def debucketed(times_ns: list[int], width_ns: int) -> list[int]:
    """Ascending times with equal ones spread evenly over ``width_ns``."""
    spread: list[int] = []
    for time_ns, group in groupby(times_ns):
        count = sum(1 for _ in group)
        spread += [time_ns + index * width_ns // count for index in range(count)]
    return spread
