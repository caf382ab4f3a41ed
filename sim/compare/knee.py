"""The highest rate of arrivals at which a contender holds its objectives, found by bisection.

It is taken for granted that attainment does not rise with the rate; with one and the same workload, scaled, that is so
but for noise.  The answer is a rate that was tried and held, and the next rate tried above it did not: the true knee
lies between the two, which are ``tolerance`` (relative) apart at most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec

from stepwell.sim.compare.records import SeedKnee

UP, DOWN = 4.0, 1.0 / 64.0
"""Rates tried go from ``DOWN`` to ``UP`` times the saturated rate."""


class SLO(msgspec.Struct, frozen=True):
    """Hold an attainment of ``share``; ``start_per_s`` is where the search begins: the saturated rate."""

    share: float
    tolerance: Annotated[float, msgspec.Meta(ge=0.001, le=0.5)]
    start_per_s: float


def find_knee(
    seed: int, slo: SLO, known: Sequence[tuple[float, float]], attainment: Callable[[float], float]
) -> SeedKnee:
    """``known`` are (rate, attainment) found before; ``attainment`` finds another."""
    start, low, high = round_rate(slo.start_per_s), 0.0, 0.0
    for rate, attained in sorted(known):
        if attained < slo.share:
            high = rate
            break
        low = rate
    tried: list[tuple[float, float]] = []

    def holds(rate: float) -> bool:
        attained = attainment(rate)
        tried.append((rate, attained))
        return attained >= slo.share

    while not high:
        rate = round_rate(2 * low) if low >= start else start
        if rate > UP * start:
            return SeedKnee(seed, low, tried, "above")
        low, high = (rate, 0.0) if holds(rate) else (low, rate)
    while not low:
        rate = round_rate(high / 2)
        if rate < DOWN * start:
            return SeedKnee(seed, 0.0, tried, "below")
        low, high = (rate, high) if holds(rate) else (0.0, rate)
    while high - low > slo.tolerance * high:
        rate = round_rate((low + high) / 2)
        if rate in (low, high):
            break
        low, high = (rate, high) if holds(rate) else (low, rate)
    return SeedKnee(seed, low, tried, "found")


def round_rate(rate_per_s: float) -> float:
    """Six digits, so that a command can name it."""
    return float(f"{rate_per_s:.6g}")
