"""Step time by a curve over the rows of a step, and a coefficient for each of its other counts.

    step = curve(prefill tokens + decoding requests) + prefill requests × a + decoding requests × b
           + KV tokens read × c + pairs of prefill attention × d + pages swapped × e + pages copied × f

Every token of a step is a row of the same matrix products, whoever it belongs to.  These are bound by memory at few
rows and by arithmetic at many, and libraries change their way at some numbers in between; so no straight line through
them fits a machine within a few per cent, and a curve does.  What rows do not share is attention: decoding requests
read their KV tokens, a prefill computes pairs of its tokens with those before (``BatchShape.prefill_pairs``).

The curve goes straight from point to point, and on beyond the last as between the last two.  Points do not fall, all
coefficients are at least 0, everything is an integer and rounded down: so the time is positive, finite and
non-decreasing in every count, however large.  `stepwell calibrate --model curve` finds them.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import Annotated

import msgspec

from stepwell.core.errors import UserError
from stepwell.core.protocols import BatchShape
from stepwell.core.types import NS_PER_S
from stepwell.sim.cost.linear import PS_PER_NS, rounding_run
from stepwell.sim.cost.reach import Reach

_LIMIT_NS = 3_600 * NS_PER_S

Nanoseconds = Annotated[int, msgspec.Meta(ge=0, le=_LIMIT_NS)]
Picoseconds = Annotated[int, msgspec.Meta(ge=0, le=_LIMIT_NS * PS_PER_NS)]
Points = tuple[tuple[int, int], ...]
"""(rows, nanoseconds), ascending."""


class Curve:
    """See the module."""

    name = "curve"
    __slots__ = ("_rows", "_times", "options", "reach")

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """The points, and coefficients; a calibration writes them.  The defaults are those of ``linear``."""

        rows_ns: Points = ((0, 6_000_000), (1, 6_030_000))
        """Time of a step of so many rows; the first point is of the fewest."""
        prefill_request_ns: Nanoseconds = 0
        decode_request_ns: Nanoseconds = 0
        kv_token_ps: Picoseconds = 60_000
        """Per KV position that is read, in picoseconds."""
        prefill_pair_ps: Picoseconds = 0
        """Per pair of a prefill token and a position that it attends to, in picoseconds."""
        swap_page_ns: Nanoseconds = 50_000
        """Per page copied between device and host, either way."""
        copy_page_ns: Nanoseconds = 0
        """Per page copied within the device."""
        reach: Reach | msgspec.UnsetType = msgspec.UNSET
        """What all of it was fitted on, as least and most of each count; unset: on nothing."""

    def __init__(self, options: Options | None = None) -> None:
        """Raises ``UserError`` for points that fall, or that say that a step takes no time."""
        self.options = options = Curve.Options() if options is None else options
        self.reach = None if options.reach is msgspec.UNSET else options.reach
        _check(options.rows_ns)
        self._rows = [rows for rows, _ in options.rows_ns]
        self._times = [time_ns for _, time_ns in options.rows_ns]

    def step_ns(self, shape: BatchShape) -> int:
        """Time of one step, its fractions rounded down."""
        return self._fixed_ns(shape) + shape.kv_tokens * self.options.kv_token_ps // PS_PER_NS

    def run_ns(self, shape: BatchShape, start_ns: int, steps: int, until_ns: int) -> list[int]:
        """As ``CostModel.run_ns``: only what is read changes from step to step."""
        each_ps = self.options.kv_token_ps
        read_ps, more_ps = shape.kv_tokens * each_ps, shape.decode_requests * each_ps
        return rounding_run(self._fixed_ns(shape), read_ps, more_ps, start_ns, steps, until_ns)

    def _fixed_ns(self, shape: BatchShape) -> int:
        """All but the KV tokens."""
        options = self.options
        return (
            self._of_rows(shape.prefill_tokens + shape.decode_requests)
            + shape.prefill_requests * options.prefill_request_ns
            + shape.decode_requests * options.decode_request_ns
            + shape.swap_pages * options.swap_page_ns
            + shape.copied_pages * options.copy_page_ns
            + shape.prefill_pairs * options.prefill_pair_ps // PS_PER_NS
        )

    def _of_rows(self, rows: int) -> int:
        known, times = self._rows, self._times
        at = min(bisect_right(known, rows), len(known) - 1)
        if at == 0 or rows <= known[0]:
            return times[0]
        first, first_ns = known[at - 1], times[at - 1]
        return first_ns + (rows - first) * (times[at] - first_ns) // (known[at] - first)


def _check(points: Points) -> None:
    field = "cost_model.options.rows_ns"
    if not points:
        raise UserError("must have at least one point, [rows, nanoseconds]", field=field)
    if points[0][0] < 0 or not 1 <= points[0][1] <= points[-1][1] <= _LIMIT_NS:
        raise UserError(f"must go from at least 0 rows and 1 ns to {_LIMIT_NS} ns at most", field=field)
    for (rows, time_ns), (more, later_ns) in pairwise(points):
        if more <= rows or later_ns < time_ns:
            raise UserError(f"must rise: [{rows}, {time_ns}] is followed by [{more}, {later_ns}]", field=field)
