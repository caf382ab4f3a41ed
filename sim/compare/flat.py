"""A comparison as flat tables, for CSV, Parquet and data frames."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from stepwell.core.schema import unknown
from stepwell.sim.compare.measures import METRICS, values_of
from stepwell.sim.compare.records import Axes, Cell, Difference, Knee, Point, Ranking, Row

TABLES = {
    "rows": "means and intervals: one row a contender, point, scope and metric",
    "differences": "differences to the baseline, likewise",
    "runs": "one row a run and scope, a column a metric",
    "rankings": "ranks: one row a point, scope, metric and contender",
    "knees": "highest rates that hold the objectives: one row a contender",
    "curves": "distributions: one row a run, scope, latency and quantile",
}

Record = dict[str, object]


class Parts(Protocol):
    """What a comparison has that tables are made of."""

    @property
    def cells(self) -> Sequence[Cell]: ...
    @property
    def rows(self) -> Sequence[Row]: ...
    @property
    def differences(self) -> Sequence[Difference]: ...
    @property
    def rankings(self) -> Sequence[Ranking]: ...
    @property
    def knees(self) -> Sequence[Knee]: ...


def columns(axes: Axes, parts: Parts, table: str) -> dict[str, list[object]]:
    """One of ``TABLES``; raises ``UserError`` for another name."""
    if table not in TABLES:
        raise unknown("table", table, TABLES, field="table")
    records = {
        "rows": lambda: _plain(axes, parts.rows),
        "differences": lambda: _plain(axes, parts.differences),
        "runs": lambda: _runs(axes, parts.cells),
        "rankings": lambda: _rankings(axes, parts.rankings),
        "knees": lambda: _knees(axes, parts.knees),
        "curves": lambda: _curves(axes, parts.cells),
    }[table]()
    names = list(dict.fromkeys(name for record in records for name in record))
    return {name: [record.get(name) for record in records] for name in names}


def _who(axes: Axes, label: str) -> Record:
    found = next(each for each in axes.contenders if each.label == label)
    return {"contender": label, "policy": found.policy, "allocator": found.allocator}


def _where(point: Point) -> Record:
    return {"load": point.load, "rate_per_s": point.rate_per_s}


def _plain(axes: Axes, items: Iterable[Row | Difference | Knee]) -> list[Record]:
    """Fields as they are; lists are left out."""
    records = []
    for item in items:
        record = _who(axes, item.contender)
        for name, value in msgspec.structs.asdict(item).items():
            if isinstance(value, Point):
                record |= _where(value)
            elif not isinstance(value, list) and name != "contender":
                record[name] = value
        records.append(record)
    return records


def _knees(axes: Axes, knees: Sequence[Knee]) -> list[Record]:
    return [record | {"bound": each.bound} for record, each in zip(_plain(axes, knees), knees, strict=True)]


def _runs(axes: Axes, cells: Iterable[Cell]) -> list[Record]:
    records = []
    for cell in cells:
        values = values_of(cell)
        for scope in dict.fromkeys(scope for scope, _ in values):
            record = _who(axes, cell.contender) | _where(cell.point) | {"seed": cell.seed, "scope": scope}
            records.append(record | {each.name: values.get((scope, each.name)) for each in METRICS})
    return records


def _rankings(axes: Axes, rankings: Iterable[Ranking]) -> list[Record]:
    return [
        _who(axes, each.contender)
        | _where(ranking.point)
        | {"scope": ranking.scope, "metric": ranking.metric, "rank": each.rank, "best": each.best, "worst": each.worst}
        | {"stability": ranking.stability, "count": ranking.count, "method": ranking.method}
        for ranking in rankings
        for each in ranking.order
    ]


def _curves(axes: Axes, cells: Iterable[Cell]) -> list[Record]:
    return [
        _who(axes, cell.contender)
        | _where(cell.point)
        | {"seed": cell.seed, "scope": curve.scope, "latency": curve.metric}
        | {"quantile": place / max(1, len(curve.values_ms) - 1), "value_ms": value}
        for cell in cells
        for curve in cell.curves
        for place, value in enumerate(curve.values_ms)
    ]
