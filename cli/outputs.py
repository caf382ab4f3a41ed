"""Files that commands write: a folder is made where an option names one, and nowhere else."""

from __future__ import annotations

from pathlib import Path

from stepwell.core.errors import UserError


def check_folder(path: Path, *, field: str) -> None:
    """Before any work: raises ``UserError`` if the folder in which the file ``path`` is to be is not there."""
    if not path.parent.is_dir():
        raise UserError(f"cannot write {path}: there is no folder {path.parent}", field=field)
