"""Counts of values by bucket, with the buckets that the field's dashboards expect."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

TTFT = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0),
)
ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
E2E = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0)
TOKENS = tuple(float(base * 10**power) for power in range(6) for base in (1, 2, 5))
FEW = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0)
STEP = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
DECISION = (5e-06, 1e-05, 2.5e-05, 5e-05, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05)
SHARES = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
LIFE = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 14400.0)


class Histogram:
    """Counts by bucket; many equal values cost what one does."""

    __slots__ = ("buckets", "counts", "sum")

    def __init__(self, buckets: Sequence[float]) -> None:
        self.buckets = buckets
        self.counts = [0] * (len(buckets) + 1)
        self.sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """``times`` equal observations."""
        self.counts[bisect_left(self.buckets, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        return sum(self.counts)

    def cumulative(self) -> list[tuple[str, float]]:
        """As the exposition format wants it."""
        total, rows = 0, []
        for bound, count in zip([*map(str, self.buckets), "+Inf"], self.counts, strict=True):
            total += count
            rows.append((bound, float(total)))
        return rows
