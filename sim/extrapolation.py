"""Which of a run's steps lie outside what their cost model was fitted on, and what may be said of their times."""

from __future__ import annotations

from typing import Literal, Protocol, cast

import msgspec

from stepwell.core.protocols import BatchShape, CostModel
from stepwell.sim.cost.reach import Reach, reach_of

Source = Literal["measured", "predicted", "estimated"]


class StepTimeSource(msgspec.Struct, frozen=True):
    """Where the step times of a run come from.

    ``measured``: a device took them.  ``predicted``: a cost model that was fitted to measurements says them; of its
    steps ``extrapolated_share`` lie beyond these, and for nine in ten of the others the true time is within
    ``error_p90`` of what it says (None: nobody held steps out to find that out).  ``estimated``: the cost model was
    fitted to nothing, so nobody knows either.

    ``measured_share``: of that part of the steps the times were measured, on batches that coincide with recorded ones
    (``whatif.measured``); the rest is as ``source`` says.  None where nobody looks for such.
    """

    source: Source = "estimated"
    extrapolated_share: float | None = None
    error_p90: float | None = None
    measured_share: float | None = None


ESTIMATED = StepTimeSource()
MEASURED = StepTimeSource("measured", 0.0)


class Counting(Protocol):
    """Told of every step of a run, one by one or as a run in which each later step reads ``decode_requests`` more."""

    def step(self, shape: BatchShape) -> None: ...
    def run(self, shape: BatchShape, count: int) -> None: ...
    def source(self) -> StepTimeSource: ...


def counting(cost: CostModel) -> Counting | None:
    """What counts a run under this cost model: its own way, or by its reach; None if it has neither."""
    own = getattr(cost, "counting", None)
    if own is not None:
        return cast(Counting, own())
    reach = reach_of(cost)
    return Extrapolation(reach) if reach is not None else None


class Extrapolation:
    """Counts the steps of a run, and those that ``reach`` does not cover."""

    __slots__ = ("_reach", "outside", "steps")

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self.steps = 0
        self.outside = 0

    def step(self, shape: BatchShape) -> None:
        """One more."""
        self.steps += 1
        if not self._reach.covers(shape):
            self.outside += 1

    def run(self, shape: BatchShape, count: int) -> None:
        """``count`` more, the first shaped ``shape``, each later one reading ``decode_requests`` KV tokens more."""
        self.steps += count
        low, high = self._reach.kv_tokens
        read, more = shape.kv_tokens, shape.decode_requests
        if more:
            first = max(0, -((read - low) // more))
            last = min(count - 1, (high - read) // more)
            rest = msgspec.structs.replace(shape, kv_tokens=low)
        else:
            first, last, rest = 0, count - 1, shape
        covered = max(0, last - first + 1) if self._reach.covers(rest) else 0
        self.outside += count - covered

    def source(self) -> StepTimeSource:
        """What is to be said of the run."""
        share = self.outside / self.steps if self.steps else 0.0
        return StepTimeSource("predicted", share, self._reach.error_p90 or None)
