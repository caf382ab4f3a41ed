"""Another cost model at another speed: what if this device were a third slower, or its measurement from a busy hour?

    step = step of ``model`` × permille / 1000, rounded up

Rounding up keeps the time positive, and what does not decrease still does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from stepwell.core.config import CostConfig
from stepwell.core.protocols import BatchShape
from stepwell.core.registry import make_cost_model
from stepwell.sim.cost.reach import reach_of
from stepwell.sim.cost.room import room_of
from stepwell.sim.cost.running import run_by_steps


class Scaled:
    """A cost model that takes ``permille`` thousandths of the time of another, with that one's reach and room."""

    name = "scaled"

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """``model`` and ``options`` are as in ``[cost]``."""

        model: Annotated[str, msgspec.Meta(min_length=1)] = "linear"
        options: Mapping[str, object] = {}
        permille: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1000
        """Above 1000 is slower."""

    def __init__(self, options: Options | None = None) -> None:
        self.options = options = Scaled.Options() if options is None else options
        self.scaled = make_cost_model(CostConfig(model=options.model, options=options.options))
        self.reach = reach_of(self.scaled)
        self.room = room_of(self.scaled)
        self._permille = options.permille

    def step_ns(self, shape: BatchShape) -> int:
        """At least 1, as the other's is."""
        return -(-self.scaled.step_ns(shape) * self._permille // 1000)

    def run_ns(self, shape: BatchShape, start_ns: int, steps: int, until_ns: int) -> list[int]:
        """Step by step."""
        return run_by_steps(self.step_ns, shape, start_ns, steps, until_ns)
