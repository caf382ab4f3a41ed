"""From cells to what they say: means, differences to the baseline, ranks; and how far each is to be trusted.

Replicates are the seeds.  Where there is only one, they are the sections of its run (see ``statistics``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from stepwell.sim.compare.measures import METRICS, values_of
from stepwell.sim.compare.records import (
    Axes,
    Cell,
    Difference,
    Knee,
    Method,
    Point,
    Ranked,
    Ranking,
    Row,
    SeedKnee,
)
from stepwell.sim.compare.statistics import LEAST_SECTIONS, Estimate, agreement, over_sections, over_seeds, ranks

LEAST_SPAN_S = 60.0
"""A run with shorter arrivals says little of a rate."""


@dataclass
class _Sample:
    """A metric's values by seed, or ``whole`` and its values by section."""

    by: dict[int, float] = field(default_factory=dict)
    whole: float | None = None

    def estimate(self) -> Estimate:
        values = list(self.by.values())
        return over_seeds(values) if self.whole is None else over_sections(self.whole, values)

    def less(self, other: _Sample) -> _Sample | None:
        """Pair by pair, over what both have; None if they have nothing in common."""
        if self.whole is not None and other.whole is not None:
            pairs = {key: value - other.by[key] for key, value in self.by.items() if key in other.by}
            return _Sample(pairs, self.whole - other.whole)
        common = {key: value - other.by[key] for key, value in self.by.items() if key in other.by}
        return _Sample(common) if common else None


class Samples:
    """All values of a comparison by (contender, point, scope, metric)."""

    def __init__(self, cells: Iterable[Cell], axes: Axes) -> None:
        self._axes = axes
        self._seeds = len(axes.seeds) > 1
        self._found: dict[tuple[str, Point, str, str], _Sample] = {}
        for cell in cells:
            for (scope, metric), value in values_of(cell).items():
                sample = self._found.setdefault((cell.contender, cell.point, scope, metric), _Sample())
                if self._seeds:
                    sample.by[cell.seed] = value
                else:
                    sample.whole = value
            for part in cell.sections if not self._seeds else ():
                found = self._found.get((cell.contender, cell.point, part.scope, part.metric))
                if found is not None:
                    found.by = {at: value for at, value in enumerate(part.values) if value is not None}

    def rows(self) -> list[Row]:
        found = []
        for point, scope, metric in self._places():
            for contender, sample in self._contenders(point, scope, metric):
                told = sample.estimate()
                method = self._method(told)
                found.append(Row(contender, point, scope, metric, told.mean, told.low, told.high, told.count, method))
        return found

    def differences(self) -> list[Difference]:
        better = {each.name: each.better for each in METRICS}
        found = []
        for point, scope, metric in self._places():
            base = self._found.get((self._axes.baseline, point, scope, metric))
            for contender, sample in self._contenders(point, scope, metric):
                pairs = sample.less(base) if base is not None and contender != self._axes.baseline else None
                if base is not None and pairs is not None:
                    found.append(
                        _difference(
                            (contender, self._axes.baseline, point, scope, metric),
                            pairs.estimate(),
                            _mean(base, pairs),
                            better[metric],
                            self._method(pairs.estimate()),
                        )
                    )
        return found

    def rankings(self) -> list[Ranking]:
        better = {each.name: each.better for each in METRICS}
        found = []
        for point, scope, metric in self._places():
            ranked = self._contenders(point, scope, metric)
            if better[metric] and scope in self._axes.scopes and len(ranked) > 1:
                found.append(_ranking((point, scope, metric), ranked, better[metric], self._seeds))
        return found

    def _method(self, told: Estimate) -> Method:
        return "none" if told.low is None else "seeds" if self._seeds else "sections"

    def _places(self) -> Iterator[tuple[Point, str, str]]:
        axes = self._axes
        for point in axes.points:
            for scope in [*axes.scopes, *(f"tenant:{each}" for each in axes.tenants)]:
                for metric in axes.metrics:
                    yield point, scope, metric.name

    def _contenders(self, point: Point, scope: str, metric: str) -> list[tuple[str, _Sample]]:
        labels = [each.label for each in self._axes.contenders]
        keys = [(label, (label, point, scope, metric)) for label in labels]
        return [(label, self._found[key]) for label, key in keys if key in self._found]


def _mean(base: _Sample, pairs: _Sample) -> float:
    """The baseline's, over the same replicates as the pairs."""
    if base.whole is not None:
        return base.whole
    return over_seeds([base.by[key] for key in pairs.by]).mean


def _difference(
    place: tuple[str, str, Point, str, str], told: Estimate, base: float, better: int, method: Method
) -> Difference:
    real = told.excludes_zero
    return Difference(
        *place,
        mean=told.mean,
        low=told.low,
        high=told.high,
        count=told.count,
        method=method,
        relative=told.mean / base if base else None,
        real=real,
        better=told.mean * better > 0 if real and better else None,
    )


def _ranking(place: tuple[Point, str, str], ranked: Sequence[tuple[str, _Sample]], better: int, seeds: bool) -> Ranking:
    """Replicates count in which every contender has a value."""
    means = [sample.estimate().mean for _, sample in ranked]
    common = [key for key in ranked[0][1].by if all(key in sample.by for _, sample in ranked)]
    replicates = [[sample.by[key] for _, sample in ranked] for key in common]
    overall = ranks(means, better)
    each_time = [ranks(values, better) for values in replicates] or [overall]
    order = [
        Ranked(label, overall[at], min(each[at] for each in each_time), max(each[at] for each in each_time))
        for at, (label, _) in enumerate(ranked)
    ]
    count = len(replicates)
    told = agreement(means, replicates) if count > 1 else None
    method: Method = "none" if told is None else "seeds" if seeds else "sections"
    return Ranking(*place, sorted(order, key=lambda each: each.rank), told, count, method)


def make_knee(contender: str, scope: str, mine: Sequence[SeedKnee], base: Sequence[SeedKnee]) -> Knee:
    """Over seeds.  Where a search met its end without an answer there is a mean, no interval, and no difference."""
    rates = {each.seed: each.rate_per_s for each in mine}
    others = {each.seed: each.rate_per_s for each in base}
    told = over_seeds(list(rates.values()))
    common = [rate - others[seed] for seed, rate in rates.items() if seed in others]
    found = all(each.bound == "found" for each in mine)
    paired = found and all(each.bound == "found" for each in base)
    pairs = over_seeds(common) if common and paired else None
    return Knee(
        contender=contender,
        scope=scope,
        mean=told.mean,
        low=told.low if found else None,
        high=told.high if found else None,
        seeds=list(mine),
        difference=pairs.mean if pairs is not None else None,
        difference_low=pairs.low if pairs is not None else None,
        difference_high=pairs.high if pairs is not None else None,
    )


def short_told(knees: Mapping[str, Sequence[SeedKnee]], by_clock: Mapping[int, int]) -> list[str]:
    """A sentence if arrivals at a rate that was found, so many by the clock with each seed, take less than a minute."""
    spans = [
        ((by_clock[each.seed] - 1) / each.rate_per_s, contender, each.seed)
        for contender, found in knees.items()
        for each in found
        if each.rate_per_s
    ]
    if not spans or min(spans)[0] >= LEAST_SPAN_S:
        return []
    span_s, contender, seed = min(spans)
    return [
        f"at the highest rates found all requests arrive within a minute or less ({contender}, seed {seed}:"
        f" {span_s:.3g} s). As many requests at a higher rate are a shorter run, in which a queue has no time to grow:"
        " the true rates may be lower; give the workload more requests"
    ]


def intervals_told(cells: Sequence[Cell], axes: Axes) -> str:
    """A sentence on where intervals come from."""
    if len(axes.seeds) > 1:
        return (
            f"intervals are 95 %, by Student's t over {len(axes.seeds)} seeds; differences are taken seed by seed,"
            " under the same requests"
        )
    sections = max((len(each.values) for cell in cells for each in cell.sections), default=0)
    if sections < LEAST_SECTIONS:
        return "one run each, and too few requests for an interval: give several seeds"
    return (
        f"one run each: intervals are 95 %, from {sections} sections of it with equally many requests; gaps between"
        " tokens and numbers of the device have none. Several seeds say more"
    )


def step_times_told(cells: Sequence[Cell]) -> str:
    """A sentence on how far the step times of all runs are to be trusted."""
    summaries = [each.summary for each in cells]
    shares = [each.extrapolated_share for each in summaries if each.extrapolated_share is not None]
    if not summaries or not shares:
        return "step times are estimated: their cost model was fitted to no measurement"
    errors = [each.step_error_p90 for each in summaries if each.step_error_p90 is not None]
    within = f"; nine in ten of the others are within ±{100 * max(errors):.1f} %" if errors else ""
    return (
        f"step times are predicted: {100 * min(shares):.1f} to {100 * max(shares):.1f} % of a run's steps lie beyond"
        f" what the cost model was fitted on{within}"
    )
