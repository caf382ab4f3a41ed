"""Step time by a curve over the rows of a step, one over those that decode, and a coefficient for each other count.

    step = curve(prefill tokens + decoding requests) + curve(decoding requests) + prefill requests × a
           + KV tokens read × b + pairs of prefill attention × c + pages swapped × d + pages copied × e

Every token of a step is a row of the same matrix products, whoever it belongs to.  These are bound by memory at few
rows and by arithmetic at many, and libraries change their way at some numbers in between; so no straight line through
them fits a machine within a few per cent, and a curve does.  What rows do not share is attention: decoding requests
gather and read their KV tokens, some of them together; a prefill computes pairs of its tokens with those before
(``BatchShape.prefill_pairs``).

A curve goes straight from point to point, and on beyond the last as between the last two.  Points do not fall, all
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
    __slots__ = ("_decode", "_rows", "options", "reach")

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """The points, and coefficients; a calibration writes them.  The defaults are those of ``linear``."""

        rows_ns: Points = ((0, 6_000_000), (1, 6_030_000))
        """Time of a step of so many rows; the first point is of the fewest."""
        decode_ns: Points = ((0, 0), (1, 0))
        """What so many decoding requests add to it."""
        prefill_request_ns: Nanoseconds = 0
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
        self._rows = _Line(options.rows_ns, "rows_ns", least_ns=1)
        self._decode = _Line(options.decode_ns, "decode_ns", least_ns=0)

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
            self._rows.at(shape.prefill_tokens + shape.decode_requests)
            + self._decode.at(shape.decode_requests)
            + shape.prefill_requests * options.prefill_request_ns
            + shape.swap_pages * options.swap_page_ns
            + shape.copied_pages * options.copy_page_ns
            + shape.prefill_pairs * options.prefill_pair_ps // PS_PER_NS
        )


class _Line:
    """Straight from point to point, and on beyond the last."""

    __slots__ = ("_counts", "_times")

    def __init__(self, points: Points, name: str, *, least_ns: int) -> None:
        field = f"cost_model.options.{name}"
        if not points:
            raise UserError("must have at least one point, [count, nanoseconds]", field=field)
        if points[0][0] < 0 or not least_ns <= points[0][1] <= points[-1][1] <= _LIMIT_NS:
            raise UserError(f"must go from at least 0 and {least_ns} ns to {_LIMIT_NS} ns at most", field=field)
        for (count, time_ns), (more, later_ns) in pairwise(points):
            if more <= count or later_ns < time_ns:
                raise UserError(f"must rise: [{count}, {time_ns}] is followed by [{more}, {later_ns}]", field=field)
        self._counts = [count for count, _ in points]
        self._times = [time_ns for _, time_ns in points]

    def at(self, count: int) -> int:
        """The time there, rounded down; before the first point it is that of the first."""
        known, times = self._counts, self._times
        if count <= known[0] or len(known) == 1:
            return times[0]
        place = min(bisect_right(known, count), len(known) - 1)
        first, first_ns = known[place - 1], times[place - 1]
        return first_ns + (count - first) * (times[place] - first_ns) // (known[place] - first)
