"""Percentiles by one stated rule, exact on integers.

Rule (*nearest rank*): the q-quantile is the smallest value whose cumulative weight, counting values in ascending order,
reaches q times the total weight.  It is always one of the given values, never an interpolation.  With q = 0 it is the
smallest value that has any weight.

``q`` lies in [0, 1] and is taken as the decimal number it prints as, so that 0.07 of 100 is 7 and not
7.000000000000001: the comparison is made in integers.  Weights are non-negative integers (counts, nanoseconds); a value
of weight 0 does not exist.  Where nothing has weight there is no percentile, and the answer is ``None``.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from stepwell.core.errors import UserError

Number = int | float
_MOST = 1 << 62


def weighted_percentile(values: npt.ArrayLike, weights: npt.ArrayLike, q: float) -> Number | None:
    """The smallest of ``values`` whose cumulative weight is at least ``q`` (in [0, 1]) times the total weight."""
    return percentiles(values, (q,), weights)[0]


def percentiles(
    values: npt.ArrayLike, qs: Sequence[float], weights: npt.ArrayLike | None = None
) -> list[Number | None]:
    """One quantile for each of ``qs``, by one sort; without ``weights`` every value counts once."""
    fractions = [_fraction(q) for q in qs]
    array = _values(values)
    if weights is None:
        ordered = np.sort(array)
        total = len(ordered)
        indices = [max(_ceil(q, total), 1) - 1 for q in fractions]
    else:
        ordered, cumulative = _by_weight(array, weights)
        total = int(cumulative[-1]) if len(cumulative) else 0
        targets = [max(_ceil(q, total), 1) for q in fractions]
        indices = [int(np.searchsorted(cumulative, target, side="left")) for target in targets]
    if total == 0:
        return [None] * len(fractions)
    picked: list[Number | None] = [ordered[index].item() for index in indices]
    return picked


def _fraction(q: float) -> Fraction:
    if not 0 <= q <= 1:  # also refuses NaN
        raise UserError(f"a percentile is asked for as a share between 0 and 1, not {q!r}", field="q")
    return Fraction(repr(float(q)))


def _ceil(q: Fraction, total: int) -> int:
    return -(-q.numerator * total // q.denominator)


def _values(values: npt.ArrayLike) -> npt.NDArray[np.generic]:
    array = np.asarray(values)
    if array.ndim != 1:
        raise UserError(f"must be one row of numbers, not {array.ndim} dimensions", field="values")
    if array.dtype.kind not in "iuf":
        if len(array):
            raise UserError(f"must be numbers, not {array.dtype}", field="values")
        return np.zeros(0, dtype=np.int64)
    if array.dtype.kind == "f" and bool(np.isnan(array).any()):
        raise UserError("holds NaN, which has no rank", field="values")
    return array


def _by_weight(
    array: npt.NDArray[np.generic], weights: npt.ArrayLike
) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.int64]]:
    """Values in ascending order, those without weight left out, and the running sum of their weights."""
    given = np.asarray(weights)
    if given.shape != array.shape:
        raise UserError(f"{given.size} weights for {array.size} values", field="weights")
    if given.size and given.dtype.kind not in "iu":
        raise UserError(f"must be integers, not {given.dtype}", field="weights")
    if given.size and int(given.min()) < 0:
        raise UserError("must not be negative", field="weights")
    if given.size and int(given.max()) * given.size >= _MOST and sum(given.tolist()) >= _MOST:
        raise UserError("sum to more than 2^62", field="weights")
    counted = given.astype(np.int64, copy=False)
    if not counted.all():
        present = counted > 0
        array, counted = array[present], counted[present]
    order = np.argsort(array, kind="stable")
    counted = counted[order]
    np.cumsum(counted, out=counted)  # in place, as there may be millions
    return array[order], counted
