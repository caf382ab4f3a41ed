"""Step time as a sum of terms, one per count of the batch: the model that simulators and probes agree on.

    step = base + prefill tokens × a + prefill requests × b + decoding requests × c
           + KV tokens read × d + pages swapped × e + pages copied within the device × f

Everything is an integer.  Terms whose coefficient is a fraction of a nanosecond are given in picoseconds (names ending
``_ps``); their sum is rounded *down* to whole nanoseconds, once a step.  Rounding down a sum that does not decrease
does not decrease either, so the time is positive, finite and non-decreasing in every count, however large: there is no
table to fall out of.  A step without tokens that only copies pages costs its base and its copies.

What the coefficients were fitted on is in the option ``reach``, which a calibration writes; the defaults have none.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import ClassVar

import msgspec

from stepwell.core.errors import UserError
from stepwell.core.protocols import BatchShape
from stepwell.core.types import NS_PER_S
from stepwell.sim.cost.linear_options import LinearOptions

PS_PER_NS = 1_000

_LIMIT_NS = 3_600 * NS_PER_S
"""No single item costs more than an hour; a larger coefficient is a slip of the unit."""

_TIGHT = 12
"""Up to this many steps a plain loop is faster than ``_long_run`` (measured)."""


class Linear:
    """A cost model of fixed-point coefficients.  The defaults are those of the common workload of published probes."""

    name: ClassVar[str] = "linear"
    Options: ClassVar[type[LinearOptions]] = LinearOptions
    __slots__ = (
        "_base_ns",
        "_copy_page_ns",
        "_decode_request_ns",
        "_kv_token_ns",
        "_kv_token_ps",
        "_prefill_request_ns",
        "_prefill_token_ns",
        "_swap_page_ns",
        "_whole",
        "options",
        "reach",
    )

    def __init__(self, options: LinearOptions | None = None) -> None:
        self.options = options = LinearOptions() if options is None else options
        _check(options)
        self.reach = None if options.reach is msgspec.UNSET else options.reach
        self._base_ns = options.base_ns
        self._prefill_token_ns = options.prefill_token_ns
        self._prefill_request_ns = options.prefill_request_ns
        self._decode_request_ns = options.decode_request_ns
        self._kv_token_ps = options.kv_token_ps
        self._swap_page_ns = options.swap_page_ns
        self._copy_page_ns = options.copy_page_ns
        self._kv_token_ns = options.kv_token_ps // PS_PER_NS
        self._whole = options.kv_token_ps % PS_PER_NS == 0

    def step_ns(self, shape: BatchShape) -> int:
        """Time of one step: the base, and each count times its coefficient, rounded down to nanoseconds."""
        return (
            self._base_ns
            + shape.prefill_tokens * self._prefill_token_ns
            + shape.prefill_requests * self._prefill_request_ns
            + shape.decode_requests * self._decode_request_ns
            + shape.swap_pages * self._swap_page_ns
            + shape.copied_pages * self._copy_page_ns
            + shape.kv_tokens * self._kv_token_ps // PS_PER_NS
        )

    def run_ns(self, shape: BatchShape, start_ns: int, steps: int, until_ns: int) -> list[int]:
        """End times of up to ``steps`` steps, each reading ``decode_requests`` KV tokens more than the one before.

        Stops after the first that ends at or past ``until_ns``.  With a whole number of nanoseconds per KV token every
        step is a constant longer than the one before it, so the loop only adds.
        """
        step_ns = self.step_ns(shape)
        if not self._whole:
            read_ps = shape.kv_tokens * self._kv_token_ps
            fixed_ns = step_ns - read_ps // PS_PER_NS
            return rounding_run(fixed_ns, read_ps, shape.decode_requests * self._kv_token_ps, start_ns, steps, until_ns)
        more_ns = shape.decode_requests * self._kv_token_ns
        if steps > _TIGHT and more_ns:
            # Steps never get shorter, so this many at the shortest length are enough to pass ``until_ns``.
            enough = max((until_ns - start_ns) // step_ns + 1, 1)
            if enough > _TIGHT:
                return _long_run(start_ns, step_ns, more_ns, min(steps, enough), until_ns)
        now_ns = start_ns
        ends: list[int] = []
        append = ends.append
        for _ in range(steps):
            now_ns += step_ns
            append(now_ns)
            if now_ns >= until_ns:
                break
            step_ns += more_ns
        return ends


COEFFICIENTS = tuple(name for name in LinearOptions.__struct_fields__ if name != "reach")
"""The options that are numbers."""


def rounding_run(fixed_ns: int, read_ps: int, more_ps: int, start_ns: int, steps: int, until_ns: int) -> list[int]:
    """``CostModel.run_ns`` where what is read costs a fraction of a nanosecond: each step takes ``fixed_ns`` and
    ``read_ps`` rounded down by itself, the next one ``more_ps`` more."""
    now_ns = start_ns
    ends: list[int] = []
    append = ends.append
    for _ in range(steps):
        now_ns += fixed_ns + read_ps // PS_PER_NS
        append(now_ns)
        if now_ns >= until_ns:
            break
        read_ps += more_ps
    return ends


def _long_run(start_ns: int, step_ns: int, more_ns: int, steps: int, until_ns: int) -> list[int]:
    """The same sums without a Python loop; ``more_ns`` is positive."""
    ends = list(accumulate(range(step_ns, step_ns + steps * more_ns, more_ns), initial=start_ns))
    del ends[0]
    del ends[bisect_left(ends, until_ns) + 1 :]
    return ends


def _check(options: LinearOptions) -> None:
    """Refuse coefficients that would make a step's time negative, zero, or not an integer."""
    for name in COEFFICIENTS:
        value: object = getattr(options, name)
        field = f"cost_model.options.{name}"
        if type(value) is not int:
            raise UserError(f"must be an integer, not {value!r}", field=field)
        least = 1 if name == "base_ns" else 0
        most = _LIMIT_NS * (PS_PER_NS if name.endswith("_ps") else 1)
        if not least <= value <= most:
            raise UserError(f"must be between {least} and {most}, not {value}", field=field)
