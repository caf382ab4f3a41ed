"""Means, intervals, pairs and ranks: the statistics that comparisons rest on, and nothing else.

An interval is a 95 % one, from one of two sources of replicates:

- **seeds**: independent runs.  The mean of n values and Student's t with n - 1 degrees of freedom.
- **sections**: one run cut into stretches of equally many requests (Asmussen and Glynn, "Stochastic Simulation", 2007,
  section IV.5: sectioning).  The estimate is that of the whole run, and the scatter of the sections' values around it
  gives the standard error.  Neighbouring stretches are not quite independent, so such intervals are on the narrow side.

Differences are taken pair by pair (same seed or same section, so the same requests), which cancels what both have in
common.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations

import msgspec

from stepwell.core.errors import UserError

CONFIDENCE = 0.95
LEAST_SECTIONS = 5


class Estimate(msgspec.Struct, frozen=True):
    """A mean and its interval over ``count`` replicates; without an interval where there are too few."""

    mean: float
    low: float | None
    high: float | None
    count: int

    @property
    def excludes_zero(self) -> bool | None:
        """Whether the interval leaves out 0; None where there is no interval."""
        if self.low is None or self.high is None:
            return None
        return self.low > 0 or self.high < 0


def over_seeds(values: Sequence[float]) -> Estimate:
    """Of independent values, one at least."""
    if not values:
        raise UserError("an estimate needs at least one value", field="values")
    mean = math.fsum(values) / len(values)
    return _around(mean, values, least=2)


def over_sections(whole: float, sections: Sequence[float | None]) -> Estimate:
    """Of a run whose value is ``whole``, from those of its sections that have a value."""
    return _around(whole, [each for each in sections if each is not None], least=LEAST_SECTIONS)


def _around(centre: float, values: Sequence[float], *, least: int) -> Estimate:
    count = len(values)
    if count < least:
        return Estimate(centre, None, None, count)
    variance = math.fsum((each - centre) ** 2 for each in values) / (count - 1)
    half = t_quantile(count - 1) * math.sqrt(variance / count)
    return Estimate(centre, centre - half, centre + half, count)


# ------------------------------------------------------------------------------------------------ Student's t


@lru_cache(maxsize=1024)
def t_quantile(freedom: int, confidence: float = CONFIDENCE) -> float:
    """The t that ``|T|`` stays below with probability ``confidence``, for whole degrees of freedom from 1."""
    if freedom < 1 or not 0 < confidence < 1:
        raise UserError(f"needs freedom from 1 and confidence in (0, 1), not {freedom} and {confidence!r}")
    low, high = 0.0, 1.0
    while t_probability(high, freedom) < confidence:
        high *= 2
    while (middle := (low + high) / 2) not in (low, high):
        if t_probability(middle, freedom) < confidence:
            low = middle
        else:
            high = middle
    return high


def t_probability(t: float, freedom: int) -> float:
    """``P(|T| <= t)`` for ``t >= 0``: the finite sums of Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    square = freedom / (freedom + t * t)
    sine, cosine = t / math.sqrt(freedom + t * t), math.sqrt(square)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = 0.0
    for k in range(odd + 2, freedom + 1, 2):
        total += term
        term *= square * (k - 1) / k
    if not odd:
        return sine * total
    return 2 / math.pi * (math.atan(t / math.sqrt(freedom)) + sine * total)


# ------------------------------------------------------------------------------------------------ ranks


def ranks(values: Sequence[float], better: int) -> list[int]:
    """1 for the best; equal values share the better rank.  ``better``: 1 if more is better, -1 if less is."""
    return [1 + sum((other - value) * better > 0 for other in values) for value in values]


def agreement(means: Sequence[float], replicates: Sequence[Sequence[float]]) -> float | None:
    """Share of pairs, over all replicates, that a replicate orders as ``means`` do; a tie on one side counts half.

    Each replicate holds a value for each of ``means``.  It is (1 + Kendall's tau) / 2.  None without pairs.
    """
    pairs = list(combinations(range(len(means)), 2))
    if not pairs or not replicates:
        return None
    points = 0
    for values in replicates:
        for first, second in pairs:
            told, found = _sign(means[first] - means[second]), _sign(values[first] - values[second])
            points += 2 if told == found else 1 if not (told and found) else 0
    return points / (2 * len(pairs) * len(replicates))


def jain(values: Sequence[float]) -> float | None:
    """Jain's index of positive values: 1 if all are equal, 1/n if one has everything; None of fewer than two."""
    squares = math.fsum(each * each for each in values)
    if len(values) < 2 or not squares:
        return None
    return math.fsum(values) ** 2 / (len(values) * squares)


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
