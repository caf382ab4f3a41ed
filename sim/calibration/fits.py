"""The options of each cost model that can be fitted, from measured steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np

from stepwell.sim.calibration.columns import COUNT_OF, TELLING, counts, evidence, without_copies
from stepwell.sim.calibration.least_squares import Floats, robust
from stepwell.sim.cost.curve import Curve
from stepwell.sim.cost.linear import COEFFICIENTS, PS_PER_NS, Linear
from stepwell.sim.cost.table import Table
from stepwell.sim.step_reader import MeasuredStep

_KNOTS = (1, 2, 3, 4, 6, 8, 9, 12, 16, 17, 24, 32, 33, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096)
"""Counts at which a curve may bend: most is going on where they are few, and behind powers of two."""
_SUPPORT = 12
"""Steps that there are between two bends, at least."""
_LEFT = 0.1
"""Part of a step's time that is left to be fitted, at least, whatever coefficients that are assumed say."""


def fit_linear(steps: Sequence[MeasuredStep]) -> tuple[dict[str, object], list[str]]:
    """The options of ``Linear`` that come closest, and those that keep their default: too few steps had what they
    are of."""
    names = [name for name in COEFFICIENTS if name in COUNT_OF]
    first, found, assumed = _fit(steps, [np.ones(len(steps))], names, Linear.Options())
    return {"base_ns": max(1, round(float(first[0]))), **found}, assumed


def fit_curve(steps: Sequence[MeasuredStep]) -> tuple[dict[str, object], list[str]]:
    """Likewise of ``Curve``: each stretch of a curve rises by its own coefficient."""
    decode = counts(steps, "decode_requests")
    rows = decode + counts(steps, "prefill_tokens")
    knots, some = _bends(rows), _bends(decode)
    default = Curve.Options()
    names = [name for name in default.__struct_fields__ if name in COUNT_OF]
    columns = [np.ones(len(steps)), *_rises(rows, knots), *_rises(decode, some)]
    first, found, assumed = _fit(steps, columns, names, default)
    base_ns, cut = max(1, round(float(first[0]))), len(knots)
    return {
        "rows_ns": _points(knots, base_ns, first[1:cut]),
        "decode_ns": _points(some, 0, first[cut:]),
        **found,
    }, assumed


def _points(knots: Sequence[int], base_ns: int, slopes: Floats) -> list[list[int]]:
    return [[count, base_ns + above] for count, above in zip(knots, _heights(knots, slopes), strict=True)]


def fit_table(steps: Sequence[MeasuredStep]) -> tuple[dict[str, object], list[str]]:
    """Likewise of ``Table``: a curve over decoding requests and one over prefill tokens, to which KV tokens and pairs
    add in proportion."""
    decode, prefill = counts(steps, "decode_requests"), counts(steps, "prefill_tokens")
    some, few = _bends(decode), _bends(prefill)
    columns = [np.ones(len(steps)), *_rises(decode, some), *_rises(prefill, few)]
    columns += [counts(steps, "kv_tokens"), counts(steps, "prefill_pairs")]
    names = [name for name in Table.Options.__struct_fields__ if name in COUNT_OF]
    first, found, assumed = _fit(steps, columns, names, Table.Options())
    cut = len(some)
    return {
        "base_ns": max(1, round(float(first[0]))),
        "decode": _grid(some, first[1:cut], columns[-2], float(first[-2])),
        "prefill": _grid(few, first[cut:-2], columns[-1], float(first[-1])),
        **found,
    }, assumed


def _grid(rows: Sequence[int], slopes: Floats, counted: Floats, each_ns: float) -> dict[str, object]:
    """A curve along ``rows``, and ``each_ns`` for each of what is counted along the other axis."""
    most = max(1, int(counted.max()))
    heights = _heights(rows, slopes)
    return {"rows": list(rows), "columns": [0, most], "values": [[it, it + round(most * each_ns)] for it in heights]}


def _rises(counted: Floats, knots: Sequence[int]) -> list[Floats]:
    """How much of each stretch between two knots lies below what was counted."""
    return [np.clip(counted - low, 0, high - low) for low, high in pairwise(knots)]


def _heights(knots: Sequence[int], slopes: Floats) -> list[int]:
    """A curve's values at its knots (ns), the first of which is 0."""
    height, found = 0.0, [0]
    for (low, high), slope in zip(pairwise(knots), slopes.tolist(), strict=True):
        height += (high - low) * slope
        found.append(round(height))
    return found


def _bends(rows: Floats) -> list[int]:
    """Where the curve may bend: from the fewest rows to the most, with enough steps in between."""
    least, most = int(rows.min()), int(rows.max())
    knots = [least]
    for knot in (*[each for each in _KNOTS if least < each < most], most):
        if knot > knots[-1] and ((rows > knots[-1]) & (rows <= knot)).sum() >= _SUPPORT:
            knots.append(knot)
    if len(knots) > 1:
        knots[-1] = most
    return knots


def _fit(
    steps: Sequence[MeasuredStep], first: Sequence[Floats], names: Sequence[str], default: object
) -> tuple[Floats, Mapping[str, object], list[str]]:
    """What the ``first`` columns cost, each of the coefficients ``names`` that enough steps tell of, and the others'
    names: those keep their default, and what is fitted explains what that leaves of the times.

    Where the device said what its copies took, these are enough.
    """
    rest_ns, page_ns = without_copies(steps)
    seen = [name for name in names if evidence(steps, name) >= TELLING or (name == "swap_page_ns" and page_ns)]
    assumed = [name for name in names if name not in seen]
    rest_ns = np.maximum(rest_ns - _assumed_ns(steps, assumed, default), rest_ns * _LEFT)
    columns = [*first, *(counts(steps, COUNT_OF[name]) for name in seen)]
    values = robust(np.stack(columns, axis=1), rest_ns)
    found: dict[str, object] = {name: getattr(default, name) for name in assumed}
    for name, value in zip(seen, values[len(first) :].tolist(), strict=True):
        more_ns = page_ns if name == "swap_page_ns" else 0.0
        found[name] = round((value + more_ns) * (PS_PER_NS if name.endswith("_ps") else 1))
    return values[: len(first)], found, assumed


def _assumed_ns(steps: Sequence[MeasuredStep], names: Sequence[str], default: object) -> Floats:
    """What each step takes by the coefficients that are not fitted."""
    total = np.zeros(len(steps))
    for name in names:
        total += counts(steps, COUNT_OF[name]) * getattr(default, name) / (PS_PER_NS if name.endswith("_ps") else 1)
    return total


Fit = Callable[[Sequence[MeasuredStep]], tuple[dict[str, object], list[str]]]
"""From steps to a cost model's options without ``reach``, and the names of those that nothing was measured for."""

FITS: dict[str, Fit] = {"curve": fit_curve, "linear": fit_linear, "table": fit_table}
"""By name of the cost model."""
