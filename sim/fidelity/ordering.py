"""Does the prediction order policies as reality does, where reality does at all?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations

import msgspec

COMPARED = ("ttft_mean_ms", "ttft_p99_ms", "tpot_mean_ms", "e2e_mean_ms", "e2e_p99_ms")
"""Metrics that policies are chosen by; of all of them less is better."""

Values = Mapping[tuple[str, float], Sequence[Mapping[str, float]]]
"""By policy and load, the metrics of each of its runs."""


class Pair(msgspec.Struct, frozen=True):
    """Two policies at a load whose real difference exceeds what separates the runs of either, and the floor.

    ``better`` is the one that was really better, by ``margin`` of its own value; ``right`` if the prediction says so.
    """

    metric: str
    load: float
    better: str
    worse: str
    margin: float
    right: bool


class Choice(msgspec.Struct, frozen=True):
    """The policy that the prediction would choose at a load, and by how much of its value the best one really was
    better."""

    metric: str
    load: float
    predicted: str
    best: str
    regret: float


class Ordering(msgspec.Struct, frozen=True):
    """``share_right`` of the pairs; ``worst_wrong`` is the largest margin among the others (0: all are right)."""

    pairs: list[Pair]
    choices: list[Choice]
    share_right: float | None
    worst_wrong: float
    worst_regret: float


def ordering(real: Values, predicted: Mapping[tuple[str, float], Mapping[str, float]]) -> Ordering:
    """Compare every two policies at every load, metric by metric.  Cells with fewer than two runs tell nothing of how
    far apart two of them are, and are left out.  With two runs a cell may look steady by luck, which is why a
    difference has to exceed the floor of all of them as well."""
    pairs: list[Pair] = []
    choices: list[Choice] = []
    for metric in COMPARED:
        for load in sorted({load for _, load in real}):
            known = [key for key in real if key[1] == load and len(real[key]) > 1 and key in predicted]
            least = floor([real[key] for key in known], metric) or 0.0
            told = [_pair(metric, one, other, real, predicted, least) for one, other in combinations(known, 2)]
            pairs += [pair for pair in told if pair is not None]
            if len(known) > 1:
                choices.append(_choice(metric, load, known, real, predicted))
    wrong = [each.margin for each in pairs if not each.right]
    return Ordering(
        pairs,
        choices,
        1 - len(wrong) / len(pairs) if pairs else None,
        max(wrong, default=0.0),
        max((each.regret for each in choices), default=0.0),
    )


def _pair(
    metric: str,
    one: tuple[str, float],
    other: tuple[str, float],
    real: Values,
    predicted: Mapping[tuple[str, float], Mapping[str, float]],
    least: float,
) -> Pair | None:
    mine, theirs = mean(real[one], metric), mean(real[other], metric)
    noise = max(apart(real[one], metric), apart(real[other], metric), least * min(mine, theirs))
    if abs(mine - theirs) <= noise or not min(mine, theirs):
        return None
    better, worse = (one, other) if mine < theirs else (other, one)
    right = predicted[better][metric] < predicted[worse][metric]
    return Pair(metric, one[1], better[0], worse[0], abs(mine - theirs) / min(mine, theirs), right)


def _choice(
    metric: str,
    load: float,
    known: Sequence[tuple[str, float]],
    real: Values,
    predicted: Mapping[tuple[str, float], Mapping[str, float]],
) -> Choice:
    chosen = min(known, key=lambda key: predicted[key][metric])
    best = min(known, key=lambda key: mean(real[key], metric))
    least = mean(real[best], metric)
    return Choice(metric, load, chosen[0], best[0], mean(real[chosen], metric) / least - 1 if least else 0.0)


def mean(runs: Sequence[Mapping[str, float]], metric: str) -> float:
    """Of a metric over runs."""
    return sum(each[metric] for each in runs) / len(runs)


def floor(cells: Sequence[Sequence[Mapping[str, float]]], metric: str) -> float | None:
    """How far two runs of one thing are apart: the root mean square over cells, by their means; None: nobody knows."""
    spreads = [spread for runs in cells if (spread := spread_of(runs, metric)) is not None]
    return math.sqrt(sum(each * each for each in spreads) / len(spreads)) if spreads else None


def spread_of(runs: Sequence[Mapping[str, float]], metric: str) -> float | None:
    """How far the runs of a cell are from one another, by their mean; None if there is but one."""
    middle = mean(runs, metric)
    return apart(runs, metric) / middle if len(runs) > 1 and middle else None


def apart(runs: Sequence[Mapping[str, float]], metric: str) -> float:
    """How far the runs of a cell are from one another, at most."""
    values = [each[metric] for each in runs]
    return max(values) - min(values)
