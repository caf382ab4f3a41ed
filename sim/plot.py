"""A picture of several runs of the same requests.  Needs matplotlib, from the extra ``research``."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stepwell.core.errors import UserError
from stepwell.core.types import NS_PER_S
from stepwell.sim.run import Result
from stepwell.sim.series import Series

HOW_TO_GET_IT = "a picture needs matplotlib: pip install 'stepwell[research]'"

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555", "#F0E442")
"""Okabe and Ito's, which people who do not tell red from green can tell apart."""

_STYLES = ("-", "--", "-.", ":", "-", "--", "-.", ":")


def can_draw() -> bool:
    """Whether matplotlib is there."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(runs: Sequence[tuple[Result, Series]], path: Path, *, title: str) -> None:
    """Write the picture to ``path``; its suffix says the format.  Raises ``UserError`` if that cannot be done."""
    if not can_draw():
        raise UserError(HOW_TO_GET_IT, field="picture")
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # lazy: an extra
    from matplotlib.figure import Figure  # lazy: an extra

    figure = Figure(figsize=(13.5, 8.2), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    top, bottom = figure.subplots(2, 3)
    classes = [each.name for each in runs[0][0].summary.classes]
    for axes, klass in zip(top, classes[:2], strict=False):
        _first_tokens(axes, runs, klass)
    for axes in top[len(classes[:2]) : 2]:
        axes.set_visible(False)
    _attainment(top[2], runs, classes)
    horizon_s = _horizon(runs)
    _over_time(bottom[0], runs, "Requests waiting (preempted ones included)", lambda it: it.waiting, horizon_s)
    _over_time(bottom[1], runs, "Requests running", lambda it: it.running, horizon_s)
    pages = runs[0][0].config.memory.pages
    _over_time(
        bottom[2], runs, f"KV pages in use (% of {pages})", lambda it: [100 * n / pages for n in it.pages], horizon_s
    )
    bottom[2].set_ylim(0, 105)
    figure.suptitle(title, fontsize=13, fontweight="bold")
    handles, labels = bottom[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize=11)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot write {path}: {error}", field="picture") from None


def _first_tokens(axes: Any, runs: Sequence[tuple[Result, Series]], klass: str) -> None:
    """Share of the class's requests, offered ones all, whose first token had come by then."""
    objective_ns = 0
    for index, (result, _) in enumerate(runs):
        records = [each for each in result.metrics.requests.values() if each.klass == klass]
        waits = sorted((r.first_token_ns - r.arrival_ns) / NS_PER_S for r in records if r.first_token_ns)
        shares = [100 * (place + 1) / len(records) for place in range(len(waits))]
        axes.step(waits, shares, where="post", **_line(index, result))
        known = result.config.klass(klass)
        objective_ns = known.ttft_ns if known is not None else 0
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, place: f"{value:g}")
    axes.set_ylim(0, 101)
    if objective_ns:
        axes.axvline(objective_ns / NS_PER_S, color="black", linewidth=0.8)
        axes.text(objective_ns / NS_PER_S, 3, " objective", fontsize=9, ha="left")
    dress(axes, f"Time to first token: {klass}", "seconds (log scale)", "% of requests")


def _attainment(axes: Any, runs: Sequence[tuple[Result, Series]], classes: Sequence[str]) -> None:
    groups = ["all", *classes] if len(classes) > 1 else ["all"]
    width = 0.8 / len(runs)
    for index, (result, _) in enumerate(runs):
        scopes = {scope.name: scope for scope in (result.summary.all, *result.summary.classes)}
        for place, name in enumerate(groups):
            value = 100 * ((scopes[name].slo_attainment if name in scopes else None) or 0.0)
            left = place - 0.4 + (index + 0.5) * width
            axes.bar(left, value, width * 0.92, color=COLOURS[index % len(COLOURS)])
            axes.text(left, value + 1.5, f"{value:.0f}", ha="center", fontsize=8)
    free = [each.name for each in runs[0][0].config.classes if not (each.ttft_ns or each.tpot_ns)]
    axes.set_xticks(range(len(groups)), [f"{name}\n(only to complete)" if name in free else name for name in groups])
    axes.set_ylim(0, 112)
    axes.set_yticks(range(0, 101, 20))
    dress(axes, "Service level objectives met", "", "% of requests")


def _horizon(runs: Sequence[tuple[Result, Series]]) -> float:
    """Where time plots end: a policy that takes far longer than the others is cut, and says so."""
    ends = sorted(series.time_s[-1] for _, series in runs if series.time_s)
    return min(ends[-1], 1.5 * ends[len(ends) // 2]) if ends else 1.0


def _over_time(
    axes: Any,
    runs: Sequence[tuple[Result, Series]],
    title: str,
    values: Callable[[Series], Sequence[float]],
    horizon_s: float,
) -> None:
    for index, (result, series) in enumerate(runs):
        end_s = series.time_s[-1] if series.time_s else 0.0
        late = f" (ends at {end_s:.0f} s)" if end_s > horizon_s else ""
        line = _line(index, result) | {"label": result.config.scheduler.policy + late}
        axes.plot(series.time_s, values(series), **line)
    axes.set_xlim(0, horizon_s)
    axes.set_ylim(bottom=0)
    dress(axes, title, "seconds", "")


def _line(index: int, result: Result) -> dict[str, Any]:
    return {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": _STYLES[index % len(_STYLES)],
        "linewidth": 1.6,
        "label": result.config.scheduler.policy,
    }


def dress(axes: Any, title: str, below: str, beside: str) -> None:
    """Title, units, a quiet grid."""
    axes.set_title(title, fontsize=11)
    axes.set_xlabel(below)
    axes.set_ylabel(beside)
    axes.grid(True, color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
