"""Columns as a polars data frame, or as a CSV or Parquet file.  Data frames and Parquet need the extra ``research``."""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepwell.core.errors import UserError

HOW_TO_GET_IT = "data frames and Parquet need polars: pip install 'stepwell[research]'"

Columns = Mapping[str, Sequence[object]]
"""Columns of equal length by name, of text, numbers and None."""


def can_frame() -> bool:
    """Whether polars is there."""
    return importlib.util.find_spec("polars") is not None


def data_frame(columns: Columns) -> Any:
    """A ``polars.DataFrame``.  Raises ``UserError`` if polars is not there."""
    if not can_frame():
        raise UserError(HOW_TO_GET_IT, field="frame")
    import polars  # lazy: an extra

    return polars.DataFrame(dict(columns), strict=False, infer_schema_length=None)


def write_csv(columns: Columns, path: Path) -> None:
    """With a head; what is None is empty."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def write_parquet(columns: Columns, path: Path) -> None:
    """Raises ``UserError`` if polars is not there or the file cannot be written."""
    frame = data_frame(columns)
    try:
        frame.write_parquet(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error}", field="parquet") from None
