"""Pictures of what lies behind latencies: differences, the queue and memory, tenants, sizes, work done twice."""

from __future__ import annotations

from typing import Any

from stepwell.sim.report import style
from stepwell.sim.report.lookup import ALL, Found

_MOST_TENANTS = 12
_OF_ALL = ("slo_attainment", "goodput_per_s", "output_tokens_per_s", "e2e_mean_ms")
_OF_EACH = ("ttft_p99_ms", "tpot_p99_ms", "e2e_mean_ms")
_WIDEST = 8.0
"""Ratios beyond it, or its inverse, end in an arrow at the edge."""


def differences(found: Found) -> Any | None:
    """Each contender against the baseline at the point in focus, with intervals; None without a second one."""
    others = [each for each in found.labels if each != found.baseline]
    places = [(name, ALL) for name in _OF_ALL]
    places += [(name, scope) for scope in found.scopes if scope != ALL for name in _OF_EACH]
    places = [(name, scope) for name, scope in places if found.row(found.baseline, found.focus, name, scope)]
    if not others or not places:
        return None
    figure, ((axes,),) = style.sheet(1, 1, height=0.4 + 0.12 * len(places) * (len(others) + 1))
    ticks: list[tuple[float, str]] = []
    at, widest = 0, 1.0
    for name, scope in places:
        ticks.append((at + (len(others) - 1) / 2, _told(found, name, scope)))
        for label in others:
            widest = max(widest, _whisker(axes, found, label, (name, scope), at))
            at += 1
        at += 1
    reach = min(max(widest * 1.15, 1.3), _WIDEST)
    axes.set_xscale("log")
    axes.set_xlim(1 / reach, reach)
    axes.axvline(1, color=style.INK, linewidth=1)
    axes.set_ylim(at - 1, -1)
    axes.set_yticks([middle for middle, _ in ticks], [text for _, text in ticks])
    steps = [
        each for each in (0.125, 0.25, 0.5, 0.7, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 4, 8) if 1 / reach <= each <= reach
    ]
    if reach > 2:
        steps = [each for each in steps if each in (0.125, 0.25, 0.5, 1, 2, 4, 8)]
    axes.set_xticks(steps, [f"{each:g}×" for each in steps])
    axes.set_xticks([], minor=True)
    style.dress(axes, f"Against {found.baseline}, {found.focus.label}", f"times {found.baseline}'s value (log)", "")
    axes.grid(axis="y", visible=False)
    for index, label in enumerate(found.labels):
        if label != found.baseline:
            axes.plot([], [], **style.line(index, label) | {"linestyle": ""})
    axes.plot([], [], "o", fillstyle="none", color=style.SOFT, label="hollow: may be chance")
    style.legend(figure, [axes])
    return figure


def _told(found: Found, name: str, scope: str) -> str:
    metric = found.metric(name)
    arrow = {1: " ↑", -1: " ↓"}.get(metric.better, "")
    return f"{metric.label}{arrow}" if scope == ALL else f"{metric.label}, {scope}{arrow}"


def _whisker(axes: Any, found: Found, label: str, place: tuple[str, str], at: int) -> float:
    """One ratio and its interval.  Returns how far it reaches, as a factor."""
    name, scope = place
    it = found.difference(label, found.focus, name, scope)
    if it is None or it.relative is None:
        return 1.0
    scale = it.relative / it.mean if it.mean else 0.0
    ends = [1 + scale * (it.mean if each is None else each) for each in (it.low, it.high)]
    middle, low, high = (min(max(each, 1 / _WIDEST), _WIDEST) for each in (1 + it.relative, min(ends), max(ends)))
    index = found.labels.index(label)
    axes.plot([low, high], [at, at], color=style.colour(index), linewidth=1.6)
    fill = "full" if it.real else "none"
    look = style.line(index, "") | {"linestyle": "", "fillstyle": fill, "markersize": 6, "clip_on": False}
    if middle in (_WIDEST, 1 / _WIDEST):
        look["marker"] = ">" if middle > 1 else "<"
    axes.plot([middle], [at], **look)
    return max(high, 1 / low)


def over_time(found: Found) -> Any | None:
    """The queue, those running and the KV pages of the first seed, at the point in focus."""
    figure, rows = style.sheet(3, 1, height=1.75)
    panels = [row[0] for row in rows]
    drawn = False
    for index, label in enumerate(found.labels):
        for cell in found.cells(label, found.focus)[:1]:
            course = cell.over_time
            look = style.line(index, label, markers=False) | {"drawstyle": "steps-post"}
            for axes, values in zip(
                panels, (course.waiting, course.running, [100 * each for each in course.kv_share]), strict=True
            ):
                axes.plot(course.time_s, values, **look)
            drawn = drawn or bool(course.time_s)
    if not drawn:
        return None
    for axes, title, unit in zip(
        panels,
        ("In line, preempted and swapped ones included", "Running", "KV pages in use"),
        ("requests", "requests", "%"),
        strict=True,
    ):
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
        style.dress(axes, title, "", unit)
    panels[-1].set_ylim(0, 105)
    panels[-1].set_xlabel("seconds")
    style.legend(figure, panels[:1])
    return figure


def tenants(found: Found) -> Any | None:
    """What each tenant waits for a token, and how even that is, at the point in focus; None with one tenant."""
    names = _tenant_names(found)
    if len(names) < 2:
        return None
    many = len(found.points) > 1
    figure, (panels,) = style.sheet(1, 2 if many else 1, height=3.2)
    left = panels[0]
    for index, label in enumerate(found.labels):
        values = [_per_token(found, label, name) for name in names]
        offset = (index - (len(found.labels) - 1) / 2) * 0.12
        places = [at + offset for at, value in enumerate(values) if value is not None]
        look = style.line(index, label) | {"linestyle": ""}
        left.plot(places, [value for value in values if value is not None], **look)
    left.set_xticks(range(len(names)), names, rotation=30 if sum(map(len, names)) > 60 else 0)
    left.set_ylim(bottom=0)
    style.dress(left, f"E2E per output token by tenant, {found.focus.label}", "", "ms")
    left.grid(axis="x", visible=False)
    if many:
        right = panels[1]
        for index, label in enumerate(found.labels):
            rows = [(found.rate(point), found.row(label, point, "tenant_fairness")) for point in found.points]
            known = [(rate, row.mean) for rate, row in rows if row is not None]
            if known:
                right.plot(*zip(*known, strict=True), **style.line(index, label))
        right.set_ylim(min(right.get_ylim()[0], 0.9), 1.01)
        style.dress(right, "Jain's index of it (1: all alike)", found.comparison.rate_unit, "")
    style.legend(figure, panels)
    return figure


def _tenant_names(found: Found) -> list[str]:
    """Those with the most requests, in order of name."""
    offered: dict[str, int] = {}
    for label in found.labels:
        for cell in found.cells(label, found.focus):
            for tenant in cell.tenants:
                offered[tenant.name] = offered.get(tenant.name, 0) + tenant.offered
    most = sorted(offered, key=lambda name: (-offered[name], name))[:_MOST_TENANTS]
    return sorted(most)


def _per_token(found: Found, label: str, tenant: str) -> float | None:
    """Its mean over seeds."""
    values = [
        each.per_token_ms
        for cell in found.cells(label, found.focus)
        for each in cell.tenants
        if each.name == tenant and each.per_token_ms is not None
    ]
    return sum(values) / len(values) if values else None


def slowdown(found: Found) -> Any | None:
    """How much longer requests take than alone, by size, at the point in focus."""
    figure, (panels,) = style.sheet(1, 2, height=3.2)
    drawn = False
    for axes, quantile, title in zip(panels, ("p50", "p99"), ("median", "p99"), strict=True):
        for index, label in enumerate(found.labels):
            spots = _slowdowns(found, label, quantile)
            if spots:
                axes.plot(*zip(*spots, strict=True), **style.line(index, label))
                drawn = True
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        style.plain_log(axes.yaxis)
        axes.xaxis.set_major_formatter(lambda value, place: f"{value:,.0f}")
        style.dress(axes, f"Slowdown, {title}, {found.focus.label}", "prompt and output tokens (log)", "× alone (log)")
    style.legend(figure, panels)
    return figure if drawn else None


def _slowdowns(found: Found, label: str, quantile: str) -> list[tuple[float, float]]:
    """(middle of a bucket, mean over seeds weighted by requests)."""
    sums: dict[tuple[int, int], tuple[float, int]] = {}
    for cell in found.cells(label, found.focus):
        for bucket in cell.slowdown:
            key = (bucket.tokens_from, bucket.tokens_to)
            total, count = sums.get(key, (0.0, 0))
            sums[key] = (total + getattr(bucket, quantile) * bucket.count, count + bucket.count)
    return [((low * (high + 1)) ** 0.5, total / count) for (low, high), (total, count) in sorted(sums.items()) if count]


def waste(found: Found) -> Any | None:
    """Tokens computed twice, and preemptions, by point; None if nobody was preempted."""
    rows = [found.row(label, point, "preemptions") for label in found.labels for point in found.points]
    if not any(each is not None and each.mean for each in rows):
        return None
    figure, (panels,) = style.sheet(1, 2)
    for axes, metric, title, factor, unit in zip(
        panels,
        ("recompute_tax", "preemptions"),
        ("Recompute tax: tokens computed again", "Preemptions in a run"),
        (100, 1),
        ("% of all computed", ""),
        strict=True,
    ):
        width = 0.8 / len(found.labels)
        for index, label in enumerate(found.labels):
            means = [(found.row(label, point, metric, ALL)) for point in found.points]
            places = [at - 0.4 + (index + 0.5) * width for at in range(len(means))]
            heights = [factor * row.mean if row is not None else 0.0 for row in means]
            low = [factor * (row.mean - row.low) if row is not None and row.low is not None else 0.0 for row in means]
            high = [
                factor * (row.high - row.mean) if row is not None and row.high is not None else 0.0 for row in means
            ]
            axes.bar(places, heights, width * 0.9, color=style.colour(index), label=label)
            axes.errorbar(places, heights, [low, high], fmt="none", ecolor=style.INK, elinewidth=0.9)
        axes.set_xticks(range(len(found.points)), [each.label for each in found.points])
        axes.set_ylim(bottom=0)
        style.dress(axes, title, "", unit)
        axes.grid(axis="x", visible=False)
    style.legend(figure, panels)
    return figure
