"""Pictures of latency: against the rate of arrivals, as distributions, and against throughput."""

from __future__ import annotations

from typing import Any

from stepwell.sim.report import style
from stepwell.sim.report.lookup import ALL, ATTAINMENT, Found

_TITLES = {"ttft": "Time to first token", "tpot": "Time per output token", "e2e": "Time to last token"}


def of_rate(found: Found) -> Any | None:
    """p99 of each latency against the rate, a row a class; None with one rate."""
    if len(found.points) < 2:
        return None
    scopes = found.scopes
    figure, rows = style.sheet(len(scopes), 3)
    for axes_row, scope in zip(rows, scopes, strict=True):
        unit = found.comparison.rate_unit
        for axes, name in zip(axes_row, _TITLES, strict=True):
            _against_rate(axes, found, f"{name}_p99_ms", scope, 1e-3)
            axes.set_yscale("log")
            style.plain_log(axes.yaxis)
            objective(axes, found, name, scope, horizontal=True)
            style.dress(axes, _titled(f"{_TITLES[name]}, p99", scope), unit, "seconds (log)")
            _knees(axes, found)
    _explain_knees(rows[0][0], found)
    style.legend(figure, rows[0])
    return figure


def attainment_of_rate(found: Found) -> Any | None:
    """Objectives met and goodput against the rate; None with one rate."""
    if len(found.points) < 2:
        return None
    figure, ((left, right),) = style.sheet(1, 2)
    unit = found.comparison.rate_unit
    if found.judged == ATTAINMENT:
        _against_rate(left, found, ATTAINMENT, ALL, 100)
        left.set_ylim(0, 103)
        if found.axes.slo_share:
            left.axhline(100 * found.axes.slo_share, color=style.SOFT, linewidth=0.8)
        style.dress(left, "Requests that met their objectives", unit, "%")
    else:
        _against_rate(left, found, "completed_per_s", ALL, 1)
        style.dress(left, "Completed", unit, "requests/s")
    _against_rate(right, found, "goodput_per_s", ALL, 1)
    if unit == "requests/s":
        rates = [found.rate(each) for each in found.points]
        right.plot(rates, rates, color=style.SOFT, linewidth=0.8, label="offered")
    right.set_ylim(bottom=0)
    style.dress(right, "Goodput", f"{unit} offered", "requests/s that met them")
    _knees(left, found)
    _explain_knees(left, found)
    style.legend(figure, [left, right])
    return figure


def distributions(found: Found) -> Any | None:
    """CDFs at the point in focus, a row a class."""
    scopes = found.scopes
    figure, rows = style.sheet(len(scopes), 3)
    for axes_row, scope in zip(rows, scopes, strict=True):
        for axes, name in zip(axes_row, _TITLES, strict=True):
            for index, label in enumerate(found.labels):
                values, share = found.quantiles(label, found.focus, name, scope)
                steps = max(len(values) - 1, 1)
                heights = [100 * share * k / steps for k in range(len(values))]
                look = style.line(index, label, markers=False)
                axes.plot([each / 1000 for each in values], heights, **look)
            axes.set_xscale("log")
            style.plain_log(axes.xaxis)
            axes.set_ylim(0, 103)
            objective(axes, found, name, scope, horizontal=False)
            style.dress(axes, _titled(_TITLES[name], scope), "seconds (log)", "% of requests")
    style.legend(figure, rows[0])
    return figure


def pareto(found: Found) -> Any | None:
    """Throughput and latency of every contender at every point; a ring around what nothing beats in both."""
    figure, (panels,) = style.sheet(1, 2, height=3.6)
    against = (("ttft_p99_ms", "first token, p99"), ("e2e_mean_ms", "last token, mean"))
    for axes, (metric, title) in zip(panels, against, strict=True):
        marks: list[tuple[float, float]] = []
        for index, label in enumerate(found.labels):
            spots = [
                (through.mean, late.mean / 1000)
                for point in found.points
                if (through := found.row(label, point, "output_tokens_per_s")) is not None
                and (late := found.row(label, point, metric)) is not None
            ]
            if spots:
                axes.plot(*zip(*spots, strict=True), **style.line(index, label))
            marks += spots
        best = frontier(marks)
        if best:
            axes.plot(
                *zip(*best, strict=True), "o", markersize=13, fillstyle="none", color=style.SOFT, label="not beaten"
            )
        axes.set_yscale("log")
        style.plain_log(axes.yaxis)
        style.dress(axes, f"Throughput and {title}", "output tokens/s", "seconds (log)")
    style.legend(figure, panels)
    return figure


def frontier(spots: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those that no other beats in one (more throughput, less latency) while being as good in the other."""
    return sorted({(x, y) for x, y in spots if not any((a >= x and b <= y) and (a > x or b < y) for a, b in spots)})


def objective(axes: Any, found: Found, name: str, scope: str, *, horizontal: bool) -> None:
    """The class's objective for a latency, as a line, if it has one."""
    klass = found.klass(scope)
    if klass is None and len(found.axes.classes) == 1:
        klass = found.axes.classes[0]
    limit_ms = getattr(klass, f"{name}_ms", 0) if klass is not None else 0
    if limit_ms:
        draw = axes.axhline if horizontal else axes.axvline
        draw(limit_ms / 1000, color=style.INK, linewidth=1.0, linestyle=(0, (1, 2)), label="objective")


def _against_rate(axes: Any, found: Found, metric: str, scope: str, factor: float) -> None:
    """A line a contender, its interval shaded."""
    for index, label in enumerate(found.labels):
        rows = [(found.rate(point), found.row(label, point, metric, scope)) for point in found.points]
        known = [(rate, row) for rate, row in rows if row is not None]
        if not known:
            continue
        rates = [rate for rate, _ in known]
        axes.plot(rates, [factor * row.mean for _, row in known], **style.line(index, label))
        low = [factor * (row.mean if row.low is None else row.low) for _, row in known]
        high = [factor * (row.mean if row.high is None else row.high) for _, row in known]
        floor = factor * min(row.mean for _, row in known) / 10
        low = [max(each, floor) for each in low]  # on a logarithmic axis nothing is below nought
        axes.fill_between(rates, low, high, color=style.colour(index), alpha=0.15, linewidth=0)


def _knees(axes: Any, found: Found) -> None:
    """Up to where each contender holds its objectives: its mark on the axis, hollow; at the edge if beyond."""
    rates = [found.rate(each) for each in found.points]
    margin = 0.06 * (rates[-1] - rates[0])
    right = rates[-1] + margin
    axes.set_xlim(rates[0] - margin, right)
    beyond = 0
    for index, label in enumerate(found.labels):
        knee = found.knee(label)
        if knee is None or knee.mean <= 0:
            continue
        look = {"color": style.colour(index), "transform": axes.get_xaxis_transform(), "clip_on": False, "zorder": 5}
        look |= {"markerfacecolor": "white", "linestyle": ""}
        if knee.mean > right:
            axes.plot([right], [0.07 * beyond], **look, marker=">")
            beyond += 1
        else:
            axes.axvline(knee.mean, color=style.colour(index), linewidth=0.7, linestyle=(0, (1, 2)))
            axes.plot([knee.mean], [0], **look, marker=style.mark(index))


def _explain_knees(axes: Any, found: Found) -> None:
    """A line of the legend."""
    if any(each.mean > 0 for each in found.comparison.knees):
        look = {"marker": "o", "markerfacecolor": "white", "linestyle": "", "color": style.SOFT}
        axes.plot([], [], **look, label="on the axis: the highest rate that holds the objectives")


def _titled(title: str, scope: str) -> str:
    return title if scope == ALL else f"{title}: {scope}"
