"""A workload as a picture: rate over time, lengths, gaps, who sends it.  Needs matplotlib (extra ``research``)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from stepwell.core.errors import UserError
from stepwell.core.types import NS_PER_S
from stepwell.sim.plot import COLOURS, HOW_TO_GET_IT, can_draw, dress
from stepwell.sim.workload.describe import Description, Group, Lengths, RateOverTime, describe, headline
from stepwell.sim.workload.request import Workload

PICTURE_BINS = 120
_MOST_POINTS = 2_000
_LETTERS = 18
_LEAST_BARS = 5
"""Room for so many, so that a single one does not fill the sheet."""
_PLATE = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1.0}


def draw_workload(workload: Workload, path: Path) -> None:
    """Write the picture to ``path``, as PNG or SVG by its suffix.  Raises ``UserError`` if that cannot be done."""
    if path.suffix not in (".png", ".svg"):
        raise UserError(f"must end in .png or .svg, not {path.suffix!r}", field="--out")
    if not can_draw():
        raise UserError(HOW_TO_GET_IT, field="--out")
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # lazy: an extra
    from matplotlib.figure import Figure  # lazy: an extra

    it = describe(workload, PICTURE_BINS)
    figure = Figure(figsize=(13.5, 7.8), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    top, bottom = figure.subplots(2, 3)
    _rate(top[0], it)
    _offered(top[1], it)
    _gaps(top[2], workload)
    _histogram(bottom[0], "Prompt length", it.prompt, 0)
    _histogram(bottom[1], "Output length", it.output, 1)
    _who(bottom[2], it)
    figure.suptitle(headline(it).replace(": ", "\n", 1), fontsize=12, fontweight="bold")
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot write {path}: {error}", field="--out") from None


def _times(over: RateOverTime) -> tuple[list[float], str]:
    """The edges of the stretches, in the unit that suits their span, and that unit."""
    total_s = over.bin_ns * len(over.requests) / NS_PER_S
    unit, size = next(
        (each for each in (("days", 86_400), ("hours", 3600), ("minutes", 60)) if total_s >= 2 * each[1]),
        ("seconds", 1),
    )
    return [at * over.bin_ns / NS_PER_S / size for at in range(len(over.requests) + 1)], unit


def _rate(axes: Any, it: Description) -> None:
    edges, unit = _times(it.over_time)
    axes.stairs(it.over_time.per_s(it.over_time.requests), edges, fill=True, color=COLOURS[0])
    axes.axhline(it.profile.rate_per_s, color="black", linewidth=0.8, linestyle="--")
    label = f"mean {it.profile.rate_per_s:.3g}"
    axes.text(edges[-1], it.profile.rate_per_s, label, ha="right", va="bottom", fontsize=8.5, bbox=_PLATE)
    axes.set_xlim(0, edges[-1])
    axes.set_ylim(bottom=0)
    of = " that follow no other" if it.followers else ""
    dress(axes, f"Requests a second{of}", unit, "")


def _offered(axes: Any, it: Description) -> None:
    edges, unit = _times(it.over_time)
    over = it.over_time
    for index, (label, tokens) in enumerate((("prompt", over.prompt_tokens), ("output", over.output_tokens))):
        axes.stairs(over.per_s(tokens), edges, color=COLOURS[index], linewidth=1.5, label=label)
    axes.set_xlim(0, edges[-1])
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(lambda value, place: f"{value:,.0f}")
    axes.legend(loc="upper right", fontsize=9)
    of = " (by requests that follow no other)" if it.followers else ""
    dress(axes, f"Tokens a second that arrive{of}", unit, "")


def _gaps(axes: Any, workload: Workload) -> None:
    """Share of gaps up to a length, beside those of a Poisson process of the same rate."""
    arrivals = [each.arrival_ns for each in workload.requests if not each.after]
    gaps = sorted((after - before) / NS_PER_S for before, after in pairwise(arrivals))
    if not gaps or not gaps[-1]:
        axes.set_visible(False)
        return
    places = _thinned(len(gaps))
    least = max(gaps[-1] / 1e6, 1e-6)
    shown = [max(gaps[place], least) for place in places]
    axes.step(
        shown, [100 * (place + 1) / len(gaps) for place in places], where="post", color=COLOURS[0], label="as it is"
    )
    mean = sum(gaps) / len(gaps)
    low, high = shown[0], shown[-1]
    points = [low * (high / low) ** (at / 100) for at in range(101)] if high > low else [low]
    axes.plot(
        points,
        [100 * (1 - 2.718281828459045 ** (-x / mean)) for x in points],
        color=COLOURS[6],
        linestyle="--",
        label="Poisson",
    )
    axes.set_xscale("log")
    axes.set_ylim(0, 101)
    axes.xaxis.set_major_formatter(lambda value, place: f"{value:g}")
    axes.legend(loc="upper left", fontsize=9)
    simultaneous = sum(not gap for gap in gaps)
    remark = f"; {100 * simultaneous / len(gaps):.0f} % are 0" if simultaneous else ""
    dress(axes, f"Gaps between arrivals{remark}", "seconds (log scale)", "% of gaps up to")


def _thinned(count: int) -> Sequence[int]:
    return (
        range(count)
        if count <= _MOST_POINTS
        else [count * at // _MOST_POINTS for at in range(_MOST_POINTS)] + [count - 1]
    )


def _histogram(axes: Any, title: str, it: Lengths, index: int) -> None:
    edges = [2.0**size for size in range(len(it.counts) + 1)]
    total = sum(it.counts)
    axes.stairs([100 * each / total for each in it.counts], edges, fill=True, color=COLOURS[index], alpha=0.85)
    axes.set_xscale("log", base=2)
    first = next(size for size, each in enumerate(it.counts) if each)
    axes.set_xlim(edges[max(first - 1, 0)], edges[-1])
    axes.xaxis.set_major_formatter(lambda value, place: f"{value:,.0f}")
    for label, value in (("median", it.p50), ("p99", it.p99)):
        axes.axvline(value, color="black", linewidth=0.8, linestyle="--")
        axes.annotate(
            f" {label} {value:,}",
            (value, 0.98),
            xycoords=("data", "axes fraction"),
            va="top",
            fontsize=8.5,
            rotation=90,
            ha="right",
            bbox=_PLATE,
        )
    dress(axes, f"{title}: mean {it.mean:,.0f}, at most {it.most:,}", "tokens (log scale)", "% of requests")


def _who(axes: Any, it: Description) -> None:
    """Classes, and tenants if there are several, as bars of their share."""
    groups: list[tuple[str, Group]] = [("class", each) for each in it.classes]
    if len(it.tenants) > 1:
        groups += [("tenant", each) for each in it.tenants]
    groups.reverse()
    colours = [COLOURS[2] if what == "class" else COLOURS[4] for what, _ in groups]
    axes.barh(range(len(groups)), [100 * each.share for _, each in groups], color=colours, height=0.7)
    axes.set_yticks(range(len(groups)), [f"{what} {_short(each.name)}" for what, each in groups])
    for place, (_, each) in enumerate(groups):
        text = f" {100 * each.share:.0f} %: {each.prompt_mean:,.0f} in, {each.output_mean:,.0f} out"
        inside = each.share > 0.55
        axes.text(
            1 if inside else 100 * each.share,
            place,
            text,
            va="center",
            fontsize=8.5,
            color="white" if inside else "black",
        )
    axes.set_xlim(0, 100)
    axes.set_ylim(min(len(groups) - _LEAST_BARS, 0) - 0.5, len(groups) - 0.5)
    programs = f"; {it.programs.programs:,} programs of {it.programs.mean:.1f} requests" if it.programs.programs else ""
    dress(axes, f"Who sends them{programs}", "% of requests (mean tokens in and out)", "")


def _short(name: str) -> str:
    return name if len(name) <= _LETTERS else f"{name[: _LETTERS - 1]}…"
