"""The journal of a live engine: one a start, in a folder, written turn by turn."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from stepwell.core.build import journal_header
from stepwell.core.config import Config
from stepwell.core.errors import UserError
from stepwell.core.journal_file import JournalWriter
from stepwell.core.scheduler import Scheduler
from stepwell.core.snapshot import capture

_MIB = 1 << 20


def open_live_journal(folder: Path, config: Config, scheduler: Scheduler) -> JournalWriter:
    """A new journal named after the present time; an older one is never touched."""
    header = journal_header(config, scheduler, "engine")
    try:
        return JournalWriter(
            _fresh(folder),
            header,
            lambda: msgspec.json.encode(capture(scheduler)),
            segment_bytes=config.journal.segment_mib * _MIB,
            keep_segments=config.journal.keep_segments,
            batch_turns=1,
        )
    except OSError as error:
        raise UserError(f"cannot write into {folder}: {error.strerror or error}", field="journal") from None


def _fresh(folder: Path) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    path, number = folder / f"{stamp}.jsonl", 1
    while path.exists():
        number += 1
        path = folder / f"{stamp}-{number}.jsonl"
    return path
