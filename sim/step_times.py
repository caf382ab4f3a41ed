"""Measured against predicted step times, gathered by what the batch looked like."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stepwell.core.protocols import BatchShape
from stepwell.core.types import NS_PER_MS, NS_PER_S
from stepwell.sim.stats import percentiles

_PREFILL_BITS, _DECODE_BITS, _KV_BITS = 1, 1, 2
"""Each bucket is so many times two as wide as the one before it."""


class StepTime(msgspec.Struct, frozen=True):
    """One step.  ``recorded_ns``: what the device took when the journal was written; 0 where that was simulated."""

    shape: BatchShape
    measured_ns: int
    predicted_ns: int
    recorded_ns: int = 0


class ShapeTimes(msgspec.Struct, frozen=True):
    """Steps of one bucket, as (least, most) of each count.  ``ratio``: measured by predicted, of the medians.

    ``recorded_p50_ms`` is None for a simulated journal.
    """

    prefill_tokens: tuple[int, int]
    decode_requests: tuple[int, int]
    kv_tokens: tuple[int, int]
    steps: int
    measured_p50_ms: float
    predicted_p50_ms: float
    ratio: float
    recorded_p50_ms: float | None = None


class TotalTimes(msgspec.Struct, frozen=True):
    """All steps: sums, and their ratios."""

    steps: int
    measured_s: float
    predicted_s: float
    ratio: float
    recorded_s: float | None = None
    ratio_to_recorded: float | None = None


class StepTimes:
    """What an execution found.  ``live``: the journal was recorded on a real device."""

    def __init__(self, live: bool) -> None:
        self.live = live
        self.steps: list[StepTime] = []

    def by_shape(self) -> list[ShapeTimes]:
        """In order of the buckets."""
        buckets: dict[tuple[tuple[int, int], tuple[int, int], tuple[int, int]], list[StepTime]] = {}
        for each in self.steps:
            shape = each.shape
            key = (
                bucket(shape.prefill_tokens, _PREFILL_BITS, 16),
                bucket(shape.decode_requests, _DECODE_BITS, 1),
                bucket(shape.kv_tokens, _KV_BITS, 256),
            )
            buckets.setdefault(key, []).append(each)
        return [self._row(*key, buckets[key]) for key in sorted(buckets)]

    def _row(
        self, prefill: tuple[int, int], decode: tuple[int, int], kv: tuple[int, int], times: Sequence[StepTime]
    ) -> ShapeTimes:
        measured_ns = _middle([each.measured_ns for each in times])
        predicted_ns = _middle([each.predicted_ns for each in times])
        recorded = [each.recorded_ns for each in times if self.live and each.recorded_ns]
        return ShapeTimes(
            prefill,
            decode,
            kv,
            len(times),
            round(measured_ns / NS_PER_MS, 3),
            round(predicted_ns / NS_PER_MS, 3),
            round(measured_ns / predicted_ns, 3),
            round(_middle(recorded) / NS_PER_MS, 3) if recorded else None,
        )

    def total(self) -> TotalTimes:
        """Of those steps that have a recorded time, if there are any, its ratio is of these."""
        times = self.steps
        measured_ns = sum(each.measured_ns for each in times)
        predicted_ns = sum(each.predicted_ns for each in times)
        ratio = round(measured_ns / predicted_ns, 3) if predicted_ns else 0.0
        told = [each for each in times if self.live and each.recorded_ns]
        total = TotalTimes(len(times), round(measured_ns / NS_PER_S, 3), round(predicted_ns / NS_PER_S, 3), ratio)
        if not told:
            return total
        recorded_ns = sum(each.recorded_ns for each in told)
        return msgspec.structs.replace(
            total,
            recorded_s=round(recorded_ns / NS_PER_S, 3),
            ratio_to_recorded=round(sum(each.measured_ns for each in told) / recorded_ns, 3),
        )


def bucket(count: int, bits: int, first: int) -> tuple[int, int]:
    """The least and the most count of the bucket that ``count`` is in: 0, then up to ``first``, then ever wider."""
    if not count:
        return 0, 0
    least, most = 1, first
    while count > most:
        least, most = most + 1, most << bits
    return least, most


def _middle(values: Sequence[int]) -> int:
    (found,) = percentiles(values, (0.5,))
    return int(found or 0)
