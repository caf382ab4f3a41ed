"""Pictures of a stretch of a run: what each request does, and what each step computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepwell.core.types import NS_PER_MS, NS_PER_S
from stepwell.sim.phases import PHASES
from stepwell.sim.report import style
from stepwell.sim.report.lookup import Found
from stepwell.sim.report.window import Window


def gantt(found: Found, windows: Sequence[Window]) -> Any | None:
    """A line a request, the same requests under each contender, classes one below another."""
    shown = [each for each in windows if any(each.spans.values())]
    if not shown:
        return None
    figure, (panels,) = style.sheet(1, len(shown), height=4.8)
    arrivals = shown[0].arrivals
    order = sorted(arrivals, key=lambda place: (arrivals[place][1], arrivals[place][0], place))
    from_ns = min(at_ns for each in shown for at_ns, _ in each.arrivals.values())
    end_s = max(spans[-1][2] - from_ns for each in shown for spans in each.spans.values() if spans) / NS_PER_S
    for axes, window in zip(panels, shown, strict=True):
        _bars(axes, window, order, from_ns)
        _deadlines(axes, found, window, order, from_ns)
        axes.set_xlim(0, end_s * 1.02)
        axes.set_ylim(len(order) - 0.4, -0.6)
        style.dress(axes, window.label, f"seconds from {from_ns / NS_PER_S:.1f} s on", "")
        axes.grid(axis="y", visible=False)
        _name_classes(axes, [arrivals[place][1] for place in order])
    style.legend(figure, panels)
    return figure


def _bars(axes: Any, window: Window, order: Sequence[int], from_ns: int) -> None:
    for phase in PHASES:
        found = [
            ((start_ns - from_ns) / NS_PER_S, (end_ns - from_ns) / NS_PER_S, line - 0.4, line + 0.4)
            for line, place in enumerate(order)
            for name, start_ns, end_ns in window.spans.get(place, ())  # the run may be over before it arrives
            if name == phase
        ]
        if found:
            style.boxes(axes, found, style.PHASE_COLOURS[phase], phase)


def _deadlines(axes: Any, found: Found, window: Window, order: Sequence[int], from_ns: int) -> None:
    """When the first token was due."""
    dots = []
    for line, place in enumerate(order):
        if place not in window.arrivals:
            continue
        arrival_ns, name = window.arrivals[place]
        klass = found.klass(name)
        if klass is not None and klass.ttft_ns:
            dots.append(((arrival_ns + klass.ttft_ns - from_ns) / NS_PER_S, line))
    if dots:
        look = {"marker": "|", "linestyle": "", "color": style.INK, "markersize": 4, "markeredgewidth": 1.2}
        axes.plot(*zip(*dots, strict=True), **look, label="first token due")


def _name_classes(axes: Any, names: Sequence[str]) -> None:
    """The class beside the middle of its lines, and a line between two classes."""
    middles = []
    for name in dict.fromkeys(names):
        first, count = names.index(name), names.count(name)
        middles.append((first + (count - 1) / 2, name))
        if first:
            axes.axhline(first - 0.5, color=style.SOFT, linewidth=0.8)
    axes.set_yticks([at for at, _ in middles], [name for _, name in middles], rotation=90, va="center")
    axes.tick_params(axis="y", length=0)


def steps(found: Found, windows: Sequence[Window]) -> Any | None:
    """A bar a step, as wide as it takes: tokens of prompts upon tokens of answers."""
    shown = [each for each in windows if each.steps]
    if not shown:
        return None
    figure, rows = style.sheet(len(shown), 1, height=2.2)
    from_ns = min(each.steps[0].start_ns for each in shown)
    end_ms = max((each.steps[-1].end_ns - from_ns) / NS_PER_MS for each in shown)
    highest = max(step.tokens for each in shown for step in each.steps)
    for (axes,), window in zip(rows, shown, strict=True):
        decoded, prefilled = [], []
        for step in window.steps:
            left, right = ((at_ns - from_ns) / NS_PER_MS for at_ns in (step.start_ns, step.end_ns))
            right -= (right - left) * 0.06  # so that neighbours are told apart
            decoded.append((left, right, 0, step.shape.decode_requests))
            prefilled.append((left, right, step.shape.decode_requests, step.tokens))
        style.boxes(axes, decoded, style.PHASE_COLOURS["decode"], "tokens of answers")
        style.boxes(axes, prefilled, style.PHASE_COLOURS["prefill"], "tokens of prompts")
        if window.token_budget <= 2 * highest:
            axes.axhline(
                window.token_budget, color=style.SOFT, linewidth=0.9, linestyle=(0, (4, 2)), label="token budget"
            )
        first_ns, last_ns = window.steps[0].start_ns, window.steps[-1].end_ns
        late = [(at - from_ns) / NS_PER_MS for at in window.preempted if first_ns <= at <= last_ns]
        if late:
            look = {"marker": "v", "linestyle": "", "color": style.PHASE_COLOURS["preempted"], "clip_on": False}
            axes.plot(late, [highest * 1.08] * len(late), **look, label="somebody gives way")
        axes.set_xlim(0, end_ms)
        axes.set_ylim(0, highest * 1.12)
        style.dress(axes, window.label, "", "tokens")
    rows[-1][0].set_xlabel(f"milliseconds from {from_ns / NS_PER_S:.1f} s on")
    style.legend(figure, [row[0] for row in rows])
    return figure
