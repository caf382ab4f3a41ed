"""A paper's claim, what was measured of it, and the verdict that follows from the numbers alone.

A claim is a few *quantities*, each a ratio or a multiple that the paper reports.  A quantity is measured once a seed.

- its **direction** holds if the whole 95 % interval over seeds lies beyond ``beyond`` (of one run: its value);
- it is **met** if the mean lies within the published range, widened by the factor ``tolerance`` on either side.

All met: reproduced.  All directions, but not all met: direction only.  Otherwise: not reproduced.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import msgspec

from stepwell.core.errors import UserError
from stepwell.sim.compare.statistics import Estimate, over_seeds

Verdict = Literal["reproduced", "direction only", "not reproduced"]


class Quantity(msgspec.Struct, frozen=True, kw_only=True):
    """What a paper says of one number.  ``least`` to ``most`` is as published; ``confirmed``: we could read it there,
    or in its abstract or artifact, and do not only remember it."""

    what: str
    least: float
    most: float
    tolerance: float = 1.5
    beyond: float = 1.0
    confirmed: bool = True

    def __post_init__(self) -> None:
        if not (0 < self.least <= self.most and self.tolerance >= 1 and self.beyond >= 0):
            raise UserError(f"{self.what}: needs 0 < least <= most, a tolerance from 1, a bound from 0")

    @property
    def accepted(self) -> tuple[float, float]:
        return self.least / self.tolerance, self.most * self.tolerance

    def directed(self, found: Estimate) -> bool:
        """Whether the direction holds."""
        return (found.mean if found.low is None else found.low) > self.beyond

    def met(self, found: Estimate) -> bool:
        low, high = self.accepted
        return low <= found.mean <= high


class Finding(msgspec.Struct, frozen=True):
    """A quantity and what was measured of it, by seed."""

    quantity: Quantity
    values: list[float]

    @property
    def estimate(self) -> Estimate:
        return over_seeds(self.values)

    @property
    def directed(self) -> bool:
        return self.quantity.directed(self.estimate)

    @property
    def met(self) -> bool:
        return self.quantity.met(self.estimate)


def judge(findings: Sequence[Finding]) -> Verdict:
    """Of a claim's quantities, one at least; a value that is no number speaks against the claim."""
    if not findings:
        raise UserError("a verdict needs at least one finding")
    if not all(math.isfinite(value) for each in findings for value in each.values):
        return "not reproduced"
    if not all(each.directed for each in findings):
        return "not reproduced"
    return "reproduced" if all(each.met for each in findings) else "direction only"
