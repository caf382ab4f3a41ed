"""Keeps a journal in files: segments of bounded size, a bounded number of them, and no loss of service on a full disk.

The first segment is the path given; later ones put a number before its suffix (``run.jsonl``, ``run.00001.jsonl``).
Whole records are written in one call and in order, so a crash tears the last line at most.  A later segment appears
under its name only once its header is complete.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import msgspec

from stepwell.core.errors import UserError
from stepwell.core.events import Event
from stepwell.core.instructions import Instruction
from stepwell.core.journal import (
    Gap,
    Header,
    Prompt,
    Record,
    Sampled,
    decode_header,
    decode_record,
    decode_records,
    encode_header,
)
from stepwell.core.journal_encoder import JournalEncoder
from stepwell.core.types import RequestId, StepId

BATCH_TURNS = 256
"""Turns that a simulation collects before it writes; a live engine writes every turn."""

RETRY_TURNS = 64
"""While the disk is full, a new segment is tried again after so many turns (a snapshot costs time)."""


def segment_path(first: Path, number: int) -> Path:
    """Where segment ``number`` of the journal that begins at ``first`` is."""
    return first if number == 0 else first.with_name(f"{first.stem}.{number:05}{first.suffix}")


def later_segments(first: Path) -> list[tuple[int, Path]]:
    """Every later segment beside ``first`` with its number, in order; damaged ones too, but nothing else of such a
    name."""
    return [(number, each) for number, each in _so_named(first) if _number_in(each) in (number, None)]


def _so_named(first: Path) -> list[tuple[int, Path]]:
    """What has the name of a later segment, and may be a file of the user's all the same (a date has its form)."""
    name = re.compile(rf"{re.escape(first.stem)}\.(\d{{5,}}){re.escape(first.suffix)}\Z", re.ASCII)
    found = [(int(match[1]), each) for each in first.parent.iterdir() if (match := name.match(each.name))]
    return sorted((number, each) for number, each in found if each == segment_path(first, number))


_MARK = b'{"stepwell_journal"'
"""What every header begins with."""

_NO_SEGMENT = -1


def _number_in(path: Path) -> int | None:
    """The segment number in a file's header; None if the header cannot be read, ``_NO_SEGMENT`` if there is none."""
    if not path.is_file():
        return _NO_SEGMENT
    with path.open("rb") as file:
        if file.read(len(_MARK)) != _MARK:
            return _NO_SEGMENT
        file.seek(0)
        try:
            return decode_header(file.readline(), name=str(path)).segment
        except UserError:
            return None


class TokenRecorder:
    """Level ``tokens``: an engine's token observer that adds prompts and sampled tokens to its journal."""

    def __init__(self, writer: JournalWriter) -> None:
        self._writer = writer

    def prompt(self, request: RequestId, tokens: Sequence[int]) -> None:
        self._writer.note(Prompt(request, list(tokens)))

    def sampled(self, step: StepId, tokens: Sequence[tuple[RequestId, int]]) -> None:
        self._writer.note(Sampled(step, list(tokens)))


class JournalWriter:
    """Writes one journal.  ``observe`` has the signature of a shell's observer.

    ``snapshot`` gives the state as JSON at the present moment, for the head of a later segment.  ``segment_bytes`` and
    ``keep_segments`` bound the size (0: unbounded); a segment is larger by one write at most, and as long as it must
    be to hold as much of records as of its head.  ``lost_turns`` counts what a full disk cost, give or take the
    repeats that the encoder held back.
    """

    def __init__(
        self,
        path: Path,
        header: Header,
        snapshot: Callable[[], bytes],
        *,
        segment_bytes: int = 0,
        keep_segments: int = 0,
        batch_turns: int = BATCH_TURNS,
        launch_ns: int = 0,
    ) -> None:
        """``launch_ns``: of the latest step, for a journal that begins in the middle (with a snapshot in its head)."""
        self.path = path
        self.encoder = JournalEncoder(launch_ns)
        self.lost_turns = 0
        self.tokens = TokenRecorder(self) if header.level == "tokens" else None
        """To be an engine's token observer."""
        self._header = header
        self._snapshot = snapshot
        self._segment_bytes = segment_bytes
        self._keep = keep_segments
        self._batch_turns = batch_turns
        self._unwritten = 0
        self._segment = 0
        self._written = deque([path])
        """Segments that are there, oldest first."""
        self._gap = ""
        self._gap_turns = 0
        self._retry_at = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        for number, old in _so_named(path):
            if _number_in(old) == number:
                old.unlink()  # or an older journal of this name would be taken for the continuation
        head = encode_header(header)
        self._file = _begin(path, head)
        self._size = self._head = len(head)

    def observe(self, now_ns: int, events: Sequence[Event], instructions: Sequence[Instruction]) -> None:
        """Record a turn; written now or with the next ones."""
        self.encoder.turn(now_ns, events, instructions)
        self._unwritten += 1
        if self._unwritten >= self._batch_turns:
            self.write()

    def note(self, record: Prompt | Sampled) -> None:
        """Record something else; written with the next turn."""
        self.encoder.note(record)

    @property
    def segment(self) -> Path:
        """The file that is being written."""
        return self._written[-1]

    @property
    def size(self) -> int:
        """Its bytes."""
        return self._size

    def write(self, *, flush: bool = False) -> None:
        """Write what is recorded (with ``flush`` also a run of repeats that may go on); go on in a new segment if this
        one is full."""
        self._write(flush=flush)
        full = self._size - self._head >= max(self._segment_bytes - self._head, self._head)
        if self._segment_bytes and full and not self._gap:
            self.rotate()

    def rotate(self) -> None:
        """Begin a new segment, with a snapshot of the state after the last recorded turn."""
        self._write(flush=True)
        if not self._gap:
            self._next_segment()

    def close(self) -> None:
        """Write the rest and close."""
        if not self._file.closed:
            self._write(flush=True)
            self._file.close()

    def _write(self, *, flush: bool) -> None:
        turns, self._unwritten = self._unwritten, 0
        data = self.encoder.take(flush=flush)
        if self._gap:
            self._lose(turns)
            if flush or self._gap_turns >= self._retry_at:
                self._next_segment()
        elif data:
            try:
                self._append(data)
            except OSError as error:
                self._begin_gap(error, turns)

    def _append(self, data: bytes) -> None:
        try:
            _write_all(self._file, data)
        except OSError:
            # Nothing half-written stays: the reader would take it for a torn tail.
            with suppress(OSError):
                self._file.truncate(self._size)
                self._file.seek(self._size)
            raise
        self._size += len(data)

    def _begin_gap(self, error: OSError, turns: int) -> None:
        self._gap = error.strerror or str(error)
        self._gap_turns = 0
        self._retry_at = RETRY_TURNS
        self._lose(turns)

    def _lose(self, turns: int) -> None:
        self._gap_turns += turns
        self.lost_turns += turns

    def _next_segment(self) -> None:
        """After a gap its first record says so; without one it follows on from the segment before it."""
        lost = self.encoder.take(flush=True)
        assert self._gap or not lost
        number = self._segment + 1
        while segment_path(self.path, number).exists():
            number += 1  # somebody else's file; a reader goes on from the snapshot
        header = msgspec.structs.replace(self._header, segment=number, snapshot=msgspec.Raw(self._snapshot()))
        head = encode_header(header)
        if self._gap:
            self.encoder.note(Gap(self._gap_turns, self._gap))
            head += self.encoder.take()
        path = segment_path(self.path, number)
        part = path.with_name(path.name + ".part")
        try:
            file = _begin(part, head)
            part.replace(path)
        except OSError as error:
            with suppress(OSError):
                part.unlink()
            if not self._gap:
                self._begin_gap(error, 0)
            self._retry_at = self._gap_turns + RETRY_TURNS
            return
        with suppress(OSError):
            self._file.close()
        self._file, self._segment, self._size, self._head, self._gap = file, number, len(head), len(head), ""
        self._written.append(path)
        if self._keep and len(self._written) > self._keep:
            with suppress(OSError):
                self._written.popleft().unlink()


def _begin(path: Path, head: bytes) -> BinaryIO:
    """A file that holds ``head``, ready for more, and is its owner's only: it may hold prompts as token ids."""
    file = open(path, "wb", buffering=0, opener=_own)  # noqa: SIM115 - closed by the writer
    try:
        _write_all(file, head)
    except OSError:
        with suppress(OSError):
            file.close()
        raise
    return file


def _own(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _write_all(file: BinaryIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        written = file.write(view)
        if not written:
            raise OSError("nothing could be written")
        view = view[written:]


class Segment(msgspec.Struct):
    """One file of a journal, its header read.  ``after_gap``: records before it were lost, so it starts by itself."""

    path: Path
    header: Header
    after_gap: bool = False

    def records(self) -> Iterator[Record]:
        """Its records; a torn last line ends them.  Raises ``UserError`` naming file and line of a damaged one."""
        with self.path.open("rb") as file:
            file.readline()
            yield from decode_records(file, name=str(self.path))


def torn_bytes(path: Path) -> int:
    """How much of a segment's end is a record only begun: the writer crashed.  0 if its last line is whole."""
    with path.open("rb") as file:
        at = file.seek(0, 2)
        tail = b""
        while at and b"\n" not in tail:
            size = min(at, _BLOCK)
            at = file.seek(at - size)
            tail = file.read(size) + tail
    line = tail.rpartition(b"\n")[2]
    if not line or len(line) == len(tail):
        return 0
    try:
        decode_record(line)
    except msgspec.DecodeError:
        return len(line)
    return 0


_BLOCK = 1 << 16


def open_journal(path: Path) -> list[Segment]:
    """The segments of the journal that begins at ``path``, those that still exist, in order.

    ``path`` may also be a later segment, to begin there.  Raises ``UserError`` if there is none, a header is damaged,
    a segment is of another journal, or one that is followed by another is cut short.
    """
    segments = [_open_segment(each) for each in _files(path)]
    if not segments:
        raise UserError(f"there is no journal at {path}")
    for before, after in pairwise(segments):
        if after.header.digest != before.header.digest:
            raise UserError(f"{after.path} is not of the same journal as {before.path}: they were configured apart")
        follows = after.header.segment == before.header.segment + 1 and not after.after_gap
        if follows and not _is_whole(before.path):
            raise UserError(f"{before.path} is cut short: its last line is torn, and yet {after.path.name} follows")
    return segments


def _files(path: Path) -> list[Path]:
    if not path.parent.is_dir():
        return []
    files = [path] if path.is_file() else []
    later = re.fullmatch(r"(.+)\.(\d{5,})", path.stem)
    if later and files:
        first, number = path.with_name(later[1] + path.suffix), int(later[2])
        if decode_header(_lines(path)[0], name=str(path)).segment == number:
            return files + [each for other, each in later_segments(first) if other > number]
    return files + [each for _, each in later_segments(path)]


def _lines(path: Path) -> tuple[bytes, bytes]:
    """The first two."""
    with path.open("rb") as file:
        return file.readline(), file.readline()


def _open_segment(path: Path) -> Segment:
    head, first = _lines(path)
    header = decode_header(head, name=str(path))
    try:
        after_gap = first.startswith(b'["gap"') and isinstance(decode_record(first), Gap)
    except msgspec.DecodeError:
        after_gap = False  # whoever reads the record is told
    return Segment(path, header, after_gap)


def _is_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, 2)
        return file.read() == b"\n"
