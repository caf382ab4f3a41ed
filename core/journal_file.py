"""Keeps a journal in files: segments of bounded size, a bounded number of them, and no loss of service on a full disk.

The first segment is the path given; later ones put a number before its suffix (``run.jsonl``, ``run.00001.jsonl``).
Whole records are written in one call and in order, so a crash tears the last line at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from stepwell.core.errors import UserError
from stepwell.core.events import Event
from stepwell.core.instructions import Instruction
from stepwell.core.journal import Gap, Header, JournalEncoder, Record, decode_header, decode_records, encode_header

BATCH_TURNS = 256
"""Turns that a simulation collects before it writes; a live engine writes every turn."""


def segment_path(first: Path, number: int) -> Path:
    """Where segment ``number`` of the journal that begins at ``first`` is."""
    return first if number == 0 else first.with_name(f"{first.stem}.{number:05}{first.suffix}")


class JournalWriter:
    """Writes one journal.  ``observe`` has the signature of a shell's observer.

    ``snapshot`` gives the state as JSON at the present moment, for the head of a later segment.  ``segment_bytes`` and
    ``keep_segments`` bound the size (0: unbounded).  ``lost_turns`` counts what a full disk cost.
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
    ) -> None:
        self.path = path
        self.encoder = JournalEncoder()
        self.lost_turns = 0
        self._header = header
        self._snapshot = snapshot
        self._segment_bytes = segment_bytes
        self._keep = keep_segments
        self._batch_turns = batch_turns
        self._unwritten = 0
        self._segment = 0
        self._size = 0
        self._gap = ""
        self._gap_turns = 0
        path.parent.mkdir(parents=True, exist_ok=True)
        self._remove_segments_after(0)
        self._file: BinaryIO = path.open("wb", buffering=0)
        self._put(encode_header(header))

    def observe(self, now_ns: int, events: Sequence[Event], instructions: Sequence[Instruction]) -> None:
        """Record a turn; written now or with the next ones."""
        self.encoder.turn(now_ns, events, instructions)
        self._unwritten += 1
        if self._unwritten >= self._batch_turns:
            self.write()

    def write(self, *, flush: bool = False) -> None:
        """Write what is recorded, and begin a new segment if this one is full or follows a gap."""
        turns, self._unwritten = self._unwritten, 0
        if self._gap:
            flush = True
        data = self.encoder.take(flush=flush)
        if self._gap:
            self._lose(turns, self._gap)
            self._next_segment(self._gap)
        elif data:
            try:
                self._put(data)
            except OSError as error:
                self._lose(turns, error.strerror or str(error))
                return
            if self._segment_bytes and self._size >= self._segment_bytes:
                self._next_segment("")

    def close(self) -> None:
        """Write the rest and close."""
        self.write(flush=True)
        self._file.close()

    def _put(self, data: bytes) -> None:
        start = self._size
        view = memoryview(data)
        try:
            while view:
                written = self._file.write(view) or 0
                self._size += written
                view = view[written:]
        except OSError:
            # Nothing half-written stays: the reader would take it for a torn tail and stop early.
            self._file.truncate(start)
            self._file.seek(start)
            self._size = start
            raise

    def _lose(self, turns: int, reason: str) -> None:
        self._gap = reason
        self._gap_turns += turns
        self.lost_turns += turns

    def _next_segment(self, gap: str) -> None:
        """Begin a segment with a snapshot of the state after the last recorded turn."""
        rest = self.encoder.take(flush=True)
        if gap:
            self.encoder.note(Gap(self._gap_turns, gap))
            rest = self.encoder.take()
        number = self._segment + 1
        header = msgspec.structs.replace(self._header, segment=number, snapshot=msgspec.Raw(self._snapshot()))
        try:
            if not gap:
                self._put(rest)
            file = segment_path(self.path, number).open("wb", buffering=0)
        except OSError as error:
            self._lose(0, error.strerror or str(error))
            return
        self._file.close()
        self._file, self._size, self._segment = file, 0, number
        try:
            self._put(encode_header(header) + (rest if gap else b""))
        except OSError as error:
            self._lose(0, error.strerror or str(error))
            return
        self._gap, self._gap_turns = "", 0
        if self._keep and number >= self._keep:
            segment_path(self.path, number - self._keep).unlink(missing_ok=True)

    def _remove_segments_after(self, number: int) -> None:
        """An older journal of the same name must not be taken for the continuation of this one."""
        for old in self.path.parent.glob(f"{self.path.stem}.[0-9][0-9][0-9][0-9][0-9]{self.path.suffix}"):
            old.unlink()


class Segment(msgspec.Struct):
    """One file of a journal, its header read."""

    path: Path
    header: Header

    def records(self) -> Iterator[Record]:
        """Its records; a torn last line ends them.  Raises ``UserError`` naming file and line of a damaged one."""
        with self.path.open("rb") as file:
            file.readline()
            yield from decode_records(file, name=str(self.path))


def open_journal(path: Path) -> list[Segment]:
    """The segments of the journal that begins at ``path`` (or is its only file), those that still exist, in order.

    Raises ``UserError`` if there is none or a header is damaged.
    """
    later = sorted(path.parent.glob(f"{path.stem}.[0-9][0-9][0-9][0-9][0-9]{path.suffix}"))
    files = [each for each in [path, *later] if each.is_file()]
    if not files:
        raise UserError(f"there is no journal at {path}")
    segments = []
    for file in files:
        with file.open("rb") as lines:
            segments.append(Segment(file, decode_header(lines.readline(), name=str(file))))
    return segments
