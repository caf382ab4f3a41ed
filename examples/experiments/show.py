"""Runs an experiment over its seeds, and tells of it: in words, as JSON, as a picture."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import msgspec

from stepwell.core.errors import UserError
from stepwell.examples.experiments.setup import Point, Side
from stepwell.examples.experiments.verdict import Finding, Quantity, Verdict, judge
from stepwell.sim.plot import COLOURS, HOW_TO_GET_IT, can_draw


class Size(msgspec.Struct, frozen=True):
    """How much is run: the seeds, and a share of the requests."""

    seeds: tuple[int, ...] = (1, 2, 3, 4, 5)
    share: float = 1.0


FULL = Size()
QUICK = Size((1,), 0.2)


Measure = Callable[[int, float, Side], list[Point]]
"""``(seed, share, side)``: a curve.  A function of a module, as other processes call it by name."""

Read = Callable[[Sequence[list[Point]]], list[float]]
"""From the curves of one seed, in the order of the sides, to a value for each quantity."""


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """A published figure, and how it is measured here."""

    name: str
    paper: str
    figure: str
    claim: str
    sides: tuple[Side, ...]
    """The contender first."""
    quantities: tuple[Quantity, ...]
    measure: Measure
    read: Read
    axes: tuple[str, str]
    limit: float | None = None
    """A line across the picture."""
    logarithmic: bool = True
    seeded: bool = True
    """Whether anything is drawn: one run is enough if not."""


class Outcome(msgspec.Struct, frozen=True):
    experiment: Experiment
    findings: list[Finding]
    curves: list[tuple[str, list[Point]]]

    @property
    def verdict(self) -> Verdict:
        return judge(self.findings)


def perform(experiment: Experiment, size: Size = FULL, sides: tuple[Side, ...] | None = None, jobs: int = 1) -> Outcome:
    """Run it; ``sides`` replace its own, in the same order."""
    seeds = size.seeds if experiment.seeded else size.seeds[:1]
    chosen = experiment.sides if sides is None else sides
    pairs = [(seed, side) for seed in seeds for side in chosen]
    tasks = ([seed for seed, _ in pairs], [size.share] * len(pairs), [side for _, side in pairs])
    if jobs < 2:
        found = list(map(experiment.measure, *tasks))
    else:
        with ProcessPoolExecutor(min(jobs, len(pairs)), mp_context=get_context("spawn")) as pool:
            found = list(pool.map(experiment.measure, *tasks))
    curves = [(side.label, points) for (_, side), points in zip(pairs, found, strict=True)]
    return Outcome(experiment, findings(experiment, found), curves)


def findings(experiment: Experiment, curves: Sequence[list[Point]]) -> list[Finding]:
    """What curves of all sides, seed after seed, say."""
    width = len(experiment.sides)
    values = [experiment.read(curves[at : at + width]) for at in range(0, len(curves), width)]
    return [Finding(each, [one[k] for one in values]) for k, each in enumerate(experiment.quantities)]


def words(outcome: Outcome) -> list[str]:
    """The report."""
    it = outcome.experiment
    lines = [it.name, f"  paper     {it.paper}", f"  figure    {it.figure}", f"  claim     {it.claim}"]
    for each in outcome.findings:
        asked, found = each.quantity, each.estimate
        about = "" if found.low is None or found.high is None else f"  [{found.low:.3g}, {found.high:.3g}]"
        published = f"{asked.least:g}" if asked.least == asked.most else f"{asked.least:g} to {asked.most:g}"
        low, high = asked.accepted
        lines += [
            f"  {asked.what}",
            f"    published {published}{'' if asked.confirmed else ' (from memory)'}; "
            f"direction: above {asked.beyond:g}; accepted: {low:.3g} to {high:.3g} (factor {asked.tolerance:g})",
            f"    measured  {found.mean:.3g}{about}, seeds: {found.count}: "
            f"direction {'holds' if each.directed else 'FAILS'}, {'within' if each.met else 'outside of'} tolerance",
        ]
    return [*lines, f"  verdict   {outcome.verdict}"]


def record(outcome: Outcome) -> str:
    """One line of JSON: what was claimed, found and drawn."""
    it = outcome.experiment
    quantities = [
        {
            "what": each.quantity.what,
            "published": [each.quantity.least, each.quantity.most],
            "confirmed": each.quantity.confirmed,
            "beyond": each.quantity.beyond,
            "accepted": [float(f"{bound:.4g}") for bound in each.quantity.accepted],
            "values": [float(f"{value:.4g}") for value in each.values],
            "mean": float(f"{each.estimate.mean:.4g}"),
            "directed": each.directed,
            "met": each.met,
        }
        for each in outcome.findings
    ]
    curves = [
        {"label": label, "points": [[float(f"{p.x:.4g}"), float(f"{p.y:.4g}")] for p in points]}
        for label, points in outcome.curves
    ]
    told = {"experiment": it.name, "paper": it.paper, "figure": it.figure, "claim": it.claim}
    return json.dumps({**told, "verdict": outcome.verdict, "quantities": quantities, "axes": it.axes, "curves": curves})


def draw(outcome: Outcome, path: Path) -> None:
    """The figure, a thin line a seed.  Raises ``UserError`` without matplotlib."""
    if not can_draw():
        raise UserError(HOW_TO_GET_IT, field="picture")
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # lazy: an extra
    from matplotlib.figure import Figure  # lazy: an extra

    it = outcome.experiment
    figure = Figure(figsize=(7.5, 4.8), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    labels = list(dict.fromkeys(label for label, _ in outcome.curves))
    named: set[str] = set()
    for label, points in outcome.curves:
        legend = "_" + label if label in named else label
        named.add(label)
        colour = COLOURS[labels.index(label) % len(COLOURS)]
        axes.plot([p.x for p in points], [p.y for p in points], color=colour, label=legend, lw=1.2, marker=".", ms=4)
    if it.limit is not None:
        axes.axhline(it.limit, color="#888888", ls=":", lw=1)
    if it.logarithmic:
        axes.set_yscale("log")
    axes.set_xlabel(it.axes[0])
    axes.set_ylabel(it.axes[1])
    axes.set_title(f"{it.figure}: {outcome.verdict}", fontsize=10)
    axes.legend(frameon=False)
    axes.grid(alpha=0.25)
    figure.savefig(path)


def main(experiments: Sequence[Experiment], words_of: str | None = None) -> None:
    """The command line of one experiment, or of several, of which some are named."""
    parser = argparse.ArgumentParser(description=words_of, formatter_class=argparse.RawDescriptionHelpFormatter)
    many = len(experiments) > 1
    if many:
        parser.add_argument("names", nargs="*", help=", ".join(each.name for each in experiments))
        parser.add_argument("--all", action="store_true", help="all of them")
    parser.add_argument("--quick", action="store_true", help="one seed and few requests: seconds, and no evidence")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (one a core)")
    parser.add_argument("--picture", type=Path, help="draw the figure to this file (of several: a folder)")
    parser.add_argument("--json", type=Path, help="add a line for each experiment to this file")
    asked = parser.parse_args()
    chosen = list(experiments)
    if many and not asked.all:
        chosen = [each for each in experiments if each.name in asked.names]
        if unknown := set(asked.names) - {each.name for each in chosen}:
            parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(e.name for e in experiments)}")
        if not chosen:
            parser.error("name some, or --all")
    for experiment in chosen:
        outcome = perform(experiment, QUICK if asked.quick else FULL, jobs=asked.jobs)
        print("\n".join(words(outcome)), flush=True)
        if asked.picture is not None:
            if many:
                asked.picture.mkdir(parents=True, exist_ok=True)
            draw(outcome, asked.picture / f"{experiment.name}.png" if many else asked.picture)
        if asked.json is not None:
            with asked.json.open("a", encoding="utf-8") as out:
                out.write(record(outcome) + "\n")
