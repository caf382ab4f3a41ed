"""The journal of a live engine, in a folder, written turn by turn; it may be switched off and on while serving."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from stepwell.core.build import journal_header
from stepwell.core.config import Config
from stepwell.core.errors import UserError
from stepwell.core.events import Event
from stepwell.core.instructions import Instruction, Launch
from stepwell.core.journal_file import JournalWriter
from stepwell.core.scheduler import Scheduler
from stepwell.core.snapshot import capture
from stepwell.core.types import RequestId, StepId

_MIB = 1 << 20


class LiveJournal:
    """An engine's observer, and its token observer at level ``tokens``; off until ``start``.

    Each start makes a new journal, named after the present time; an older one is never touched.  One that begins while
    requests are there begins with a snapshot of them, and at level ``tokens`` it lacks their prompts.
    """

    def __init__(self, folder: Path, config: Config, scheduler: Scheduler) -> None:
        self.folder = folder
        self.tokens = self if config.journal.level == "tokens" else None
        self._config = config
        self._scheduler = scheduler
        self._writer: JournalWriter | None = None
        self._launch_ns = 0
        self._lost = 0

    # ------------------------------------------------------------------------------------------- the operator's side

    def start(self) -> None:
        """Raises ``UserError`` if the folder cannot be written."""
        if self._writer is not None:
            return
        config, scheduler = self._config, self._scheduler
        header = journal_header(config, scheduler, "engine")
        if scheduler.state.now_ns:  # something was decided before
            header = msgspec.structs.replace(header, snapshot=msgspec.Raw(self._snapshot()))
        try:
            self._writer = JournalWriter(
                _fresh(self.folder),
                header,
                self._snapshot,
                segment_bytes=config.journal.segment_mib * _MIB,
                keep_segments=config.journal.keep_segments,
                batch_turns=1,
                launch_ns=self._launch_ns,
            )
        except OSError as error:
            raise UserError(f"cannot write into {self.folder}: {error.strerror or error}", field="journal") from None

    def stop(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
            self._lost += writer.lost_turns

    def rotate(self) -> None:
        if self._writer is None:
            raise UserError("no journal is being written", field="rotate")
        self._writer.rotate()

    def state(self) -> dict[str, object]:
        writer = self._writer
        told: dict[str, object] = {"on": writer is not None, "folder": str(self.folder)}
        told["level"] = self._config.journal.level
        if writer is not None:
            told |= {"path": str(writer.path), "segment": str(writer.segment), "segment_bytes": writer.size}
            told["turns"] = writer.encoder.turns
        return {**told, "lost_turns": self._lost + (writer.lost_turns if writer is not None else 0)}

    # ------------------------------------------------------------------------------------------- the engine's side

    def observe(self, now_ns: int, events: Sequence[Event], instructions: Sequence[Instruction]) -> None:
        """Record a turn, if a journal is being written."""
        if self._writer is not None:
            self._writer.observe(now_ns, events, instructions)
        for each in instructions:
            if type(each) is Launch:
                self._launch_ns = now_ns

    def prompt(self, request: RequestId, tokens: Sequence[int]) -> None:
        """Record a prompt, as ``observe`` does a turn."""
        if self._writer is not None and self._writer.tokens is not None:
            self._writer.tokens.prompt(request, tokens)

    def sampled(self, step: StepId, tokens: Sequence[tuple[RequestId, int]]) -> None:
        """Record what a step sampled."""
        if self._writer is not None and self._writer.tokens is not None:
            self._writer.tokens.sampled(step, tokens)

    def _snapshot(self) -> bytes:
        return msgspec.json.encode(capture(self._scheduler))


def _fresh(folder: Path) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    path, number = folder / f"{stamp}.jsonl", 1
    while path.exists():
        number += 1
        path = folder / f"{stamp}-{number}.jsonl"
    return path
