"""Outcomes kept in a folder, so that a comparison that was interrupted, or asks a little more, goes on where it was.

An outcome is found again by the digest of its task, of Stepwell's code and of foreign plugins' code.  Failures are not
kept.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

from stepwell.core.errors import UserError
from stepwell.sim.compare.code import code_digest, plugin_digest
from stepwell.sim.compare.tasks import Failed, Outcome, Task, decode_outcome, encode


class Cache:
    """Without a folder it keeps nothing."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder / "cells" if folder is not None else None
        if self._folder is not None:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(f"cannot write to {folder}: {error.strerror or error}", field="out") from None

    def find(self, task: Task) -> Outcome | None:
        """None if it is not there, or cannot be read."""
        path = self._path(task)
        try:
            return decode_outcome(path.read_bytes()) if path is not None else None
        except (OSError, msgspec.DecodeError):
            return None

    def keep(self, task: Task, outcome: Outcome) -> None:
        """Whole or not at all, whenever the program is ended."""
        path = self._path(task)
        if path is not None and not isinstance(outcome, Failed):
            partial = path.with_suffix(".part")
            partial.write_bytes(msgspec.json.encode(outcome))
            os.replace(partial, path)

    def _path(self, task: Task) -> Path | None:
        if self._folder is None:
            return None
        parts = (encode(task), code_digest().encode(), plugin_digest(task.config).encode())
        return self._folder / f"{hashlib.sha256(b''.join(parts)).hexdigest()[:32]}.json"
