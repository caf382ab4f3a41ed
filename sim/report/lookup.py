"""A comparison made easy to ask: one row, one difference, one cell, by what they are of."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.core.config import ClassConfig
from stepwell.sim.compare.result import Cell, Comparison, Curve, Difference, Knee, Metric, Point, Ranking, Row

ALL = "all"
MOST_SCOPES = 3
"""Classes that a picture gives a row of its own."""

ATTAINMENT, GOODPUT, FALLBACK = "slo_attainment", "goodput_per_s", "e2e_mean_ms"
"""What contenders are judged by: the first, or the last where no class has objectives.  At a tie, the next."""

_APART = 0.005
"""Less is written as 0 %."""


class Found:
    """Answers by label; ``focus`` is the point at which contenders differ the most in ``judged``."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison
        self.axes = comparison.axes
        self.labels = [each.label for each in comparison.axes.contenders]
        self.baseline = comparison.axes.baseline
        self._rows = {(each.contender, each.point, each.scope, each.metric): each for each in comparison.rows}
        self._differences = {
            (each.contender, each.point, each.scope, each.metric): each for each in comparison.differences
        }
        self._rankings = {(each.point, each.scope, each.metric): each for each in comparison.rankings}
        self._cells: dict[tuple[str, Point], list[Cell]] = {}
        for cell in comparison.cells:
            self._cells.setdefault((cell.contender, cell.point), []).append(cell)
        self.points = sorted(comparison.axes.points, key=self.rate)
        self.judged = ATTAINMENT if any(each.metric == ATTAINMENT for each in comparison.rows) else FALLBACK
        self.focus = max(self.points, key=self._spread, default=Point())

    # ------------------------------------------------------------------------------------------- one of them

    def row(self, contender: str, point: Point, metric: str, scope: str = ALL) -> Row | None:
        return self._rows.get((contender, point, scope, metric))

    def difference(self, contender: str, point: Point, metric: str, scope: str = ALL) -> Difference | None:
        return self._differences.get((contender, point, scope, metric))

    def ranking(self, point: Point, metric: str, scope: str = ALL) -> Ranking | None:
        return self._rankings.get((point, scope, metric))

    def knee(self, contender: str) -> Knee | None:
        return next((each for each in self.comparison.knees if each.contender == contender), None)

    def cells(self, contender: str, point: Point) -> list[Cell]:
        """One a seed that did not fail."""
        return self._cells.get((contender, point), [])

    def metric(self, name: str) -> Metric:
        found = self.axes.metric(name)
        return found if found is not None else Metric(name, name, "", 0, False)

    def klass(self, name: str) -> ClassConfig | None:
        return next((each for each in self.axes.classes if each.name == name), None)

    # ------------------------------------------------------------------------------------------- several

    @property
    def scopes(self) -> list[str]:
        """Those that pictures have a row for: the classes if there are several, else all requests."""
        classes = [each for each in self.axes.scopes if each != ALL]
        return classes[:MOST_SCOPES] if classes else [ALL]

    def rate(self, point: Point) -> float:
        """Requests a second."""
        if point.rate_per_s is not None:
            return point.rate_per_s
        rates = [each.rate_per_s for each in self.comparison.workloads]
        return sum(rates) / len(rates) if rates else 0.0

    def best(self, point: Point, metric: str, scope: str = ALL) -> str:
        """Whose mean is best; the only one there is, if nobody was ranked."""
        ranking = self.ranking(point, metric, scope)
        return ranking.order[0].contender if ranking is not None and ranking.order else self.labels[0]

    def rival(self, winner: str) -> str:
        """Whom the winner at the focus is held against: the baseline, or if that wins, the next best."""
        if winner != self.baseline:
            return self.baseline
        ranking = self.ranking(self.focus, self.judged)
        others = [each.contender for each in ranking.order] if ranking is not None else self.labels
        return next((each for each in others if each != winner), winner)

    def verdict(self) -> tuple[str, str, str]:
        """The winner at the focus, whom it is held against, and by which metric.

        Where these two are equal in ``judged``, all that are equal to them are judged by the next metric that really
        tells the first of them from its rival, or if none does, by the next in which the means differ visibly.
        """
        winner = self.best(self.focus, self.judged)
        rival = self.rival(winner)
        means = {label: self._mean(label, self.judged) for label in self.labels}
        if winner == rival or means[winner] is None or means[winner] != means[rival]:
            return winner, rival, self.judged
        tied = [label for label in self.labels if means[label] == means[winner]]
        decided = [it for name in (GOODPUT, FALLBACK) for it in self._first(tied, name)]
        for first, second, name in decided:
            told = self.difference(second if first == self.baseline else first, self.focus, name)
            if told is not None and told.real:
                return first, second, name
        return decided[0] if decided else (winner, rival, self.judged)

    def _first(self, tied: Sequence[str], metric: str) -> list[tuple[str, str, str]]:
        """The first of them by a metric and its rival, unless they are less than half a percent apart."""
        sign = self.metric(metric).better
        known = [(mean, each) for each in tied for mean in [self._mean(each, metric)] if mean is not None]
        if len(known) < len(tied):
            return []
        order = sorted(known, key=lambda it: -sign * it[0])
        first = order[0]
        second = order[1] if first[1] == self.baseline else next(it for it in order if it[1] == self.baseline)
        return (
            [(first[1], second[1], metric)]
            if abs(first[0] - second[0]) >= _APART * max(abs(first[0]), abs(second[0])) > 0
            else []
        )

    def _mean(self, label: str, metric: str) -> float | None:
        row = self.row(label, self.focus, metric)
        return row.mean if row is not None else None

    def quantiles(self, contender: str, point: Point, metric: str, scope: str) -> tuple[list[float], float]:
        """A curve's values (ms), their means over seeds, and the share of requests offered that have one."""
        curves = [
            curve
            for cell in self.cells(contender, point)
            for curve in cell.curves
            if (curve.metric, curve.scope) == (metric, scope) and curve.values_ms
        ]
        offered = sum(each.offered for each in curves)
        return _means([each.values_ms for each in curves]), _count(curves) / offered if offered else 0.0

    def extrapolated(self) -> float | None:
        """The share of steps whose shape lies outside what was measured, over all runs; None if nobody knows."""
        told = [(each.summary.extrapolated_share, each.summary.steps) for each in self.comparison.cells]
        known = [(share * steps, steps) for share, steps in told if share is not None]
        total = sum(steps for _, steps in known)
        return sum(beyond for beyond, _ in known) / total if total and len(known) == len(told) else None

    def step_error(self) -> float | None:
        """Nine in ten steps within what was measured are predicted this well, at worst; None if nobody knows."""
        return max((each.summary.step_error_p90 or 0.0 for each in self.comparison.cells), default=0.0) or None

    def _spread(self, point: Point) -> tuple[bool, float, float]:
        """How much the best leaves the baseline behind there; a real difference counts before any that may be none."""
        best = self.best(point, self.judged)
        others = [best] if best != self.baseline else [each for each in self.labels if each != self.baseline]
        found = [self.difference(each, point, self.judged) for each in others]
        sizes = [(bool(each.real), abs(each.mean)) for each in found if each is not None]
        real, size = max(sizes, default=(False, 0.0))
        return real, size, self.rate(point)


def _count(curves: Sequence[Curve]) -> int:
    return sum(each.count for each in curves)


def _means(rows: Sequence[Sequence[float]]) -> list[float]:
    return [sum(values) / len(values) for values in zip(*rows, strict=True)]
