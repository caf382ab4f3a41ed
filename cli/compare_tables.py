"""A comparison as tables for people."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepwell.cli.tables import console, plain_table
from stepwell.core.schema import unknown
from stepwell.sim.compare.result import Comparison, Difference, Knee, Metric, Point, Ranking, Row

SHOWN = ("slo_attainment", "goodput_per_s", "ttft_p99_ms", "tpot_p99_ms", "e2e_mean_ms")
FOR_TENANTS = ("slo_attainment", "service_share", "ttft_mean_ms", "ttft_p99_ms", "per_token_ms")
"""Shown unless somebody asks for others."""

_COLUMN, _LEAST = 17, 60
_MARKS = {True: ("▲", "green"), False: ("▼", "red"), None: ("◆", "yellow")}
"""Of a real difference: better, worse, neither side is."""


class _Scale(NamedTuple):
    """How values of a row of numbers are written."""

    factor: float
    unit: str
    digits: int


def print_comparison(found: Comparison, *, scope: str = "all", metrics: Sequence[str] = ()) -> None:
    """Tables by point, ranks, knees, and how to read them.  Raises ``UserError`` for a scope or metric it lacks."""
    to = console()
    shown = _chosen(found, scope, metrics)
    for note in found.workloads[0].lines[:3]:
        to.print(note)
    for point in found.axes.points:
        to.print()
        _point(found, point, scope, shown, to)
    if found.knees:
        to.print()
        _knees(found, to)
    to.print()
    if found.differences:
        to.print(
            f"▲ better than {found.axes.baseline}, ▼ worse, ◆ differs: the 95 % interval of the paired difference, in"
            " the line below, leaves out 0; = not told apart"
        )
    for note in found.notes:
        to.print(note[:1].upper() + note[1:])
    others = [each for each in found.axes.scopes if each != scope]
    if len(others) > 1:
        to.print(f"Other requests: --scope {', '.join(others)}" + (", or tenant:NAME" if found.axes.tenants else ""))


def _chosen(found: Comparison, scope: str, metrics: Sequence[str]) -> list[Metric]:
    axes = found.axes
    scopes = [*axes.scopes, *(f"tenant:{each}" for each in axes.tenants)]
    if scope not in scopes:
        raise unknown("scope", scope, scopes, field="--scope")
    known = {each.name: each for each in axes.metrics}
    for name in metrics:
        if name not in known:
            raise unknown("metric", name, known, field="--metric")
    there = {row.metric for row in found.rows if row.scope == scope}
    default = FOR_TENANTS if scope.startswith("tenant:") else SHOWN
    return [known[name] for name in (metrics or default) if name in there or metrics]


def _point(found: Comparison, point: Point, scope: str, shown: Sequence[Metric], to: Console) -> None:
    rows = {(row.contender, row.metric): row for row in found.rows if (row.point, row.scope) == (point, scope)}
    differences = {
        (each.contender, each.metric): each for each in found.differences if (each.point, each.scope) == (point, scope)
    }
    rate = f" ({point.rate_per_s:g} {found.rate_unit})" if point.load is not None else ""
    what = "" if scope == "all" else f", {scope.replace(':', ' ') if ':' in scope else f'class {scope}'}"
    to.print(Text(f"{point.label}{rate}{what}", "bold"))
    label = max(len(each.label) for each in found.axes.contenders) + 2
    fit = max(1, (max(to.width, _LEAST) - label) // _COLUMN)
    for start in range(0, len(shown), fit):
        metrics = shown[start : start + fit]
        to.print(_table(found, metrics, rows, differences))
    rankings = {each.metric: each for each in found.rankings if (each.point, each.scope) == (point, scope)}
    for metric in shown:
        if metric.name in rankings:
            to.print(f"  by {metric.label}: {_ranked(rankings[metric.name])}")


def _table(
    found: Comparison,
    metrics: Sequence[Metric],
    rows: dict[tuple[str, str], Row],
    differences: dict[tuple[str, str], Difference],
) -> Table:
    table = plain_table("", *[each.label for each in metrics])
    for contender in found.axes.contenders:
        label = contender.label
        cells: list[Text] = []
        for metric in metrics:
            row = rows.get((label, metric.name))
            cells.append(_cell(metric, row, differences.get((label, metric.name))))
        table.add_row(Text(label, "bold" if label == found.axes.baseline else ""), *cells)
    return table


def _cell(metric: Metric, row: Row | None, difference: Difference | None) -> Text:
    """The value, and below it how it differs from the baseline."""
    if row is None:
        return Text("–")
    scale = _scale(metric.unit, row.mean)
    text = Text(_told(scale, row.mean, row.low))
    if difference is None:
        return text.append("  ")
    mark, style = ("=", "dim") if not difference.real else _MARKS[difference.better]
    if difference.real is None:
        mark = " "
    text.append(f" {mark}", style)
    return text.append(f"\n{_told(scale, difference.mean, difference.low, sign='+')}  ", "dim")


def _scale(unit: str, mean: float) -> _Scale:
    factor, shown = {"ms": (1.0, " ms"), "share": (100.0, " %"), "/s": (1.0, " /s")}.get(unit, (1.0, ""))
    if unit == "ms" and mean >= 1000:
        factor, shown = 1e-3, " s"
    if unit == "share":
        return _Scale(factor, shown, 1)
    size = abs(mean * factor)
    return _Scale(factor, shown, min(6, max(0, 2 - math.floor(math.log10(size)))) if size else 1)


def _told(scale: _Scale, mean: float, low: float | None, sign: str = "") -> str:
    half = f" ±{(mean - low) * scale.factor:.{scale.digits}f}" if low is not None else ""
    return f"{mean * scale.factor:{sign}.{scale.digits}f}{half}{scale.unit}"


def _ranked(ranking: Ranking) -> str:
    names = [
        f"{each.rank} {each.contender}" + (f" ({each.best}–{each.worst})" if each.best != each.worst else "")
        for each in ranking.order
    ]
    told = ", ".join(names)
    if ranking.stability is not None:
        told += f"; {ranking.method} agree on {100 * ranking.stability:.0f} % of pairs"
    return told


def _knees(found: Comparison, to: Console) -> None:
    axes = found.axes
    scope = found.knees[0].scope
    share = 100 * (axes.slo_share or 0)
    whose = "" if scope == "all" else f" of {scope}"
    to.print(Text(f"highest rate at which {share:g} %{whose} meet their objectives", "bold"))
    table = plain_table("", found.rate_unit, "load", f"minus {axes.baseline}", "")
    for knee in found.knees:
        load = f"{knee.mean / axes.saturated_per_s:.2f}" if axes.saturated_per_s else "–"
        scale = _scale("/s", knee.mean)._replace(unit="")
        pair = "" if knee.contender == axes.baseline else "–"
        if knee.difference is not None and pair:
            pair = _told(scale, knee.difference, knee.difference_low, sign="+")
        table.add_row(knee.contender, _told(scale, knee.mean, knee.low), load, pair, _bounds(knee))
    to.print(table)
    to.print(f"  each is at most {100 * (axes.tolerance or 0):g} % below the true one, with its seed's requests")


def _bounds(knee: Knee) -> str:
    """What is to be known where a search found no end."""
    words = {"above": "or more: it held at every rate tried", "below": "it held at none that was tried"}
    return "; ".join(words[each] for each in dict.fromkeys(seed.bound for seed in knee.seeds) if each in words)
