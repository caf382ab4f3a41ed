"""Least squares with coefficients that are not negative, and a robust form for times that go wrong now and then."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_ROUNDS = 30
_SCALE = 1.4826
"""Makes the median of absolute residuals an estimate of the standard deviation."""
_NORMAL = 2.5
"""Residuals up to so many standard deviations count in full."""
_DISTURBED = 1.0
"""What took longer than its prediction by more than this part of it was held up by something else."""


def nonnegative(matrix: Floats, target: Floats) -> Floats:
    """The ``x`` ≥ 0 that makes ``matrix @ x`` come closest to ``target`` (Lawson and Hanson, Solving Least Squares
    Problems, 1974, chapter 23).  Shapes: [rows, columns], [rows], [columns]."""
    columns = matrix.shape[1]
    size = np.sqrt((matrix * matrix).sum(axis=0))
    scale = np.where(size > 0, size, 1.0)
    rotated, small = np.linalg.qr(matrix / scale)
    aim = rotated.T @ target
    found = np.zeros(columns)
    free = np.zeros(columns, dtype=bool)
    tolerance = 1e-12 * max(1.0, float(np.abs(aim).max(initial=0.0)))
    for _ in range(3 * columns + 3):
        gain = np.where(free, -np.inf, small.T @ (aim - small @ found))
        if not columns or gain.max() <= tolerance:
            break
        free[int(gain.argmax())] = True
        found = _solved(small, aim, found, free)
    return np.asarray(found / scale, dtype=np.float64)


def _solved(small: Floats, aim: Floats, found: Floats, free: npt.NDArray[np.bool_]) -> Floats:
    """The best with only ``free`` ones above 0; whoever would turn negative on the way is no longer free."""
    while free.any():
        wanted = np.zeros_like(found)
        wanted[free] = np.linalg.lstsq(small[:, free], aim, rcond=None)[0]
        falling = free & (wanted <= 0)
        if not falling.any():
            return wanted
        steps = found[falling] / np.maximum(found[falling] - wanted[falling], np.finfo(np.float64).tiny)
        found = np.maximum(found + float(steps.min()) * (wanted - found), 0.0)
        free &= found > 0
    return np.zeros_like(found)


def robust(matrix: Floats, times: Floats) -> Floats:
    """Coefficients ≥ 0 for positive ``times``: every time counts by its relative error, and outliers count less.

    Weights are by what is predicted, not by what was measured: those would favour whatever happened to be quick.
    Huber's function bounds the influence of a step that was held up.  As that pulls towards the middle, and sums of
    times are what people wait for, all is scaled in the end so that predictions add up to the measured sum, in which a
    step counts as twice its prediction at most.
    """
    predicted = times
    weight = np.ones_like(times)
    found = np.zeros(matrix.shape[1])
    for _ in range(_ROUNDS):
        rows = np.sqrt(weight) / predicted
        before, found = found, nonnegative(matrix * rows[:, None], times * rows)
        predicted = _floored(matrix @ found, times)
        error = np.abs(times / predicted - 1.0)
        usual = max(_SCALE * float(np.median(error)), 1e-9)
        weight = np.minimum(1.0, _NORMAL * usual / np.maximum(error, 1e-12))
        if np.allclose(found, before, rtol=1e-7, atol=0.0):
            break
    counted = np.minimum(times, predicted * (1.0 + _DISTURBED))
    return np.asarray(found * float(counted.sum() / predicted.sum()), dtype=np.float64)


def _floored(predicted: Floats, times: Floats) -> Floats:
    """Predictions to divide by: none far below the shortest time there is."""
    return np.maximum(predicted, float(times.min()) * 0.1)
