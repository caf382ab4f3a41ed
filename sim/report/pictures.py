"""Which pictures a report has, in order, and one line under each that says how to read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepwell.core.errors import UserError
from stepwell.sim.report import causes, closeup, latency, measured, style
from stepwell.sim.report.lookup import Found
from stepwell.sim.report.measured import Measured
from stepwell.sim.report.window import Window

FOLDER = "pictures"


@dataclass(frozen=True)
class Picture:
    """Drawn and saved as ``pictures/NAME.svg`` and ``.png``; ``svg`` is the former."""

    name: str
    title: str
    caption: str
    svg: str


@dataclass(frozen=True)
class Material:
    """What pictures are drawn from: the comparison, and if there are any, close looks at runs and what was measured."""

    found: Found
    windows: Sequence[Window] = ()
    measured: Measured | None = None


@dataclass(frozen=True)
class _Kind:
    name: str
    title: str
    caption: str
    draw: Callable[[Material], Any | None]
    one_run: bool = False
    signed: bool = True


KINDS: tuple[_Kind, ...] = (
    _Kind(
        "differences",
        "Is it better, and is it real?",
        "Each contender as a multiple of the baseline, under the same requests: the arrow behind a metric says which"
        " side is better, the line is the 95 % interval, and a hollow mark may be chance.",
        lambda it: causes.differences(it.found),
    ),
    _Kind(
        "latency-rate",
        "Latency against the rate of requests",
        "Lower is better. Where a line turns upwards the contender is overrun; the dotted line is the objective, bands"
        " are 95 % intervals.",
        lambda it: latency.of_rate(it.found),
    ),
    _Kind(
        "objectives-rate",
        "Objectives met, and useful work",
        "Higher is better. Left: the share of requests that met every objective of their class; right: how many of them"
        " a second, against what was offered.",
        lambda it: latency.attainment_of_rate(it.found),
    ),
    _Kind(
        "distributions",
        "How many requests wait how long",
        "The further left the better. A line that passes 99 % at 2 seconds says: 99 of 100 requests took at most that."
        " A line that ends below 100 %: the rest never got there.",
        lambda it: latency.distributions(it.found),
    ),
    _Kind(
        "throughput-latency",
        "Throughput bought with latency",
        "Right and down is better: more tokens a second, sooner. One mark a rate; what is ringed is beaten by none.",
        lambda it: latency.pareto(it.found),
    ),
    _Kind(
        "over-time",
        "The line and the memory over time",
        "One run of the first seed. A line that only grows means that more comes than can be served; pages at 100 %"
        " mean that somebody must give way.",
        lambda it: causes.over_time(it.found),
        one_run=True,
    ),
    _Kind(
        "requests",
        "The same requests, one line each",
        "Each line is a request from arrival to end, the same ones on both sides, chosen around the baseline's longest"
        " line: grey waits, orange and blue are served. A black tick is when its first token was due.",
        lambda it: closeup.gantt(it.found, it.windows),
        one_run=True,
    ),
    _Kind(
        "steps",
        "What the device computes, step by step",
        "Each bar is a step, as wide as it takes. Tall orange bars are prompts: while they are computed, every"
        " answer waits for its next token.",
        lambda it: closeup.steps(it.found, it.windows),
        one_run=True,
    ),
    _Kind(
        "tenants",
        "Fairness between tenants",
        "Left: what a tenant waits for each token of its answers; one contender's marks at one height are fair. Right:"
        " 1 is perfectly even.",
        lambda it: causes.tenants(it.found),
    ),
    _Kind(
        "slowdown",
        "Who pays: slowdown by size",
        "How many times longer a request takes than alone on the device. A line that rises to the right starves long"
        " requests, one that falls makes short ones wait for them.",
        lambda it: causes.slowdown(it.found),
    ),
    _Kind(
        "recompute",
        "Work done twice",
        "Lower is better: tokens that were computed, dropped because memory ran out, and computed again.",
        lambda it: causes.waste(it.found),
    ),
    _Kind(
        "predicted-real",
        "Predicted against real",
        "Measured on a real device: a mark on the line was predicted exactly, one above it takes less than predicted.",
        lambda it: measured.against_real(it.measured),
        signed=False,
    ),
)


def draw(material: Material, folder: Path) -> Iterator[Picture]:
    """Every picture that there is something to draw of.  Raises ``UserError`` if one cannot be written."""
    seeds = material.found.axes.seeds
    share = material.found.extrapolated()
    beyond = "" if share is None else f"; {100 * share:.1f} % of steps extrapolated"
    home = folder / FOLDER
    try:
        home.mkdir(parents=True, exist_ok=True)
        with style.drawing():
            for kind in KINDS:
                figure = kind.draw(material)
                if figure is None:
                    continue
                one = kind.one_run or len(seeds) == 1
                if kind.signed:
                    style.sign(figure, (f"seed {seeds[0]}" if one else f"means over {len(seeds)} seeds") + beyond)
                text = style.svg(figure)
                (home / f"{kind.name}.svg").write_text(text, encoding="utf-8")
                style.png(figure, home / f"{kind.name}.png")
                yield Picture(kind.name, kind.title, kind.caption, text)
    except OSError as error:
        raise UserError(f"cannot write {error.filename or home}: {error.strerror or error}", field="report") from None
