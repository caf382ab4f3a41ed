"""What a comparison found, as data: written as JSON, read back, drawn by reports and tables.

Everything in it follows from the scenario alone.  It holds no times of the machine, so the same scenario gives the same
bytes with one process, with many, and on a cluster.

A **contender** is a policy with its options on an allocator; tables name it by its label.  A **point** is a rate of
arrivals.  A **cell** is one run: a contender at a point with a seed; runs of one seed and point get the same requests,
whoever the contender is.  Everything else is worked out from cells: **rows** (means over seeds), **differences** to the
baseline (seed by seed), **rankings**, and **knees** (the highest rate that holds the objectives).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from stepwell.core.errors import UserError
from stepwell.sim.compare.flat import columns
from stepwell.sim.compare.records import (
    CURVE_STEPS,
    SERIES_POINTS,
    Axes,
    Cell,
    Contender,
    Curve,
    Difference,
    Failure,
    Knee,
    Method,
    Metric,
    OverTime,
    Point,
    Ranked,
    Ranking,
    Row,
    Sections,
    SeedKnee,
    SeedWorkload,
    SizeBucket,
    TenantNumbers,
)
from stepwell.sim.frames import data_frame
from stepwell.sim.workload.request import rate_unit

__all__ = [
    "CURVE_STEPS",
    "SERIES_POINTS",
    "VERSION",
    "Axes",
    "Cell",
    "Comparison",
    "Contender",
    "Curve",
    "Difference",
    "Failure",
    "Knee",
    "Method",
    "Metric",
    "OverTime",
    "Point",
    "Ranked",
    "Ranking",
    "Row",
    "Sections",
    "SeedKnee",
    "SeedWorkload",
    "SizeBucket",
    "TenantNumbers",
    "from_json",
    "read",
    "to_json",
]

VERSION = 1
"""Of the format; a reader refuses any other."""


class Comparison(msgspec.Struct, frozen=True):
    """All of it.  ``config`` is the scenario's configuration as TOML, ``digest`` identifies the whole question.

    Cells are in the order contender, point, seed; rows, differences and rankings by point, scope and metric.
    """

    version: int
    stepwell: str
    scenario: str
    config: str
    digest: str
    workloads: list[SeedWorkload]
    axes: Axes
    cells: list[Cell]
    failures: list[Failure]
    rows: list[Row]
    differences: list[Difference]
    rankings: list[Ranking]
    knees: list[Knee]
    notes: list[str]

    def contender(self, label: str) -> Contender:
        return next(each for each in self.axes.contenders if each.label == label)

    @property
    def rate_unit(self) -> str:
        """What the rates of points and knees count."""
        return rate_unit(max(each.followers for each in self.workloads) if self.workloads else 0)

    def frame(self, table: str = "rows") -> Any:
        """One of ``flat.TABLES`` as a polars data frame; needs the extra ``research``."""
        return data_frame(columns(self.axes, self, table))


def to_json(comparison: Comparison) -> bytes:
    """One line of JSON; equal comparisons give equal bytes."""
    return msgspec.json.encode(comparison) + b"\n"


def from_json(data: bytes, *, source: str = "") -> Comparison:
    """Read it back; raises ``UserError`` if it is none, or of another version."""
    where = f"{source}: " if source else ""
    try:
        version = msgspec.json.decode(data, type=_Head).version
        if version == VERSION:
            return msgspec.json.decode(data, type=Comparison)
    except msgspec.DecodeError as error:
        raise UserError(f"{where}is not a comparison: {error}") from None
    raise UserError(f"{where}a comparison of format {version}; this Stepwell reads format {VERSION}")


def read(path: str | Path) -> Comparison:
    """A comparison from the file that ``stepwell compare --json`` or ``--out`` wrote."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    return from_json(data, source=str(path))


class _Head(msgspec.Struct):
    version: int
