"""What a cost model was fitted on: where it knows, and where it only continues what it knows.

A cost model may have ``reach: Reach | None``.  None, or no such attribute, says that nothing was measured at all:
every step is an estimate.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from stepwell.core.execution import BatchShape

_LARGE = 1 << 62

Count = Annotated[int, msgspec.Meta(ge=0, le=_LARGE)]
Bounds = tuple[Count, Count]
"""The least and the most that was measured."""

COUNTS = BatchShape.__struct_fields__
"""The counts of a batch, which are the bounds of a reach too."""


class Reach(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The least and the most of each count of ``BatchShape`` among the measured steps; [0, 0]: none had any.

    It bounds each count by itself.  A batch in which every count was seen, but never together with the others, counts
    as measured, so what is outside is surely extrapolated and what is inside need not be interpolated well:
    ``error_p90`` says how well.
    """

    prefill_tokens: Bounds = (0, 0)
    decode_requests: Bounds = (0, 0)
    kv_tokens: Bounds = (0, 0)
    swap_pages: Bounds = (0, 0)
    prefill_requests: Bounds = (0, 0)
    copied_pages: Bounds = (0, 0)
    prefill_pairs: Bounds = (0, _LARGE)
    """Bounded only if whoever measured says so: most models do not look at it."""
    error_p90: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = 0.0
    """|measured − predicted| / predicted of nine in ten steps that were held out of the fit is at most this; 0: none
    was held out."""
    steps: Count = 0
    """How many were measured; 0: not told."""

    def __post_init__(self) -> None:
        for name in COUNTS:
            least, most = getattr(self, name)
            if least > most:
                raise ValueError(f"{name} = [{least}, {most}] begins above its end; write [least, most]")

    def covers(self, shape: BatchShape) -> bool:
        """Whether every count of the step is within what was measured."""
        return (
            self.prefill_tokens[0] <= shape.prefill_tokens <= self.prefill_tokens[1]
            and self.decode_requests[0] <= shape.decode_requests <= self.decode_requests[1]
            and self.kv_tokens[0] <= shape.kv_tokens <= self.kv_tokens[1]
            and self.swap_pages[0] <= shape.swap_pages <= self.swap_pages[1]
            and self.prefill_requests[0] <= shape.prefill_requests <= self.prefill_requests[1]
            and self.copied_pages[0] <= shape.copied_pages <= self.copied_pages[1]
            and self.prefill_pairs[0] <= shape.prefill_pairs <= self.prefill_pairs[1]
        )

    def outside(self, shape: BatchShape) -> list[str]:
        """The counts that are beyond what was measured, by name; empty if it covers the step."""
        return [name for name in COUNTS if not getattr(self, name)[0] <= getattr(shape, name) <= getattr(self, name)[1]]


def reach_of(cost: object) -> Reach | None:
    """What the cost model was fitted on; None if it was not measured at all."""
    reach = getattr(cost, "reach", None)
    return reach if isinstance(reach, Reach) else None
