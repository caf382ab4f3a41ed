"""Step times that were measured, where a batch coincides with a recorded one, and predicted ones elsewhere.

Two batches **coincide** if every count of their ``BatchShape`` is the same in its first five binary digits: counts up
to 31 are equal, larger ones are within one part in sixteen.  The time of such a batch is what the fallback model
predicts for it, plus the median of (measured less predicted) over the recorded steps that it coincides with.  So a
batch of exactly the recorded shape takes the median of what was measured, and the model only carries that over the
small distance to a neighbour.  Everywhere else the fallback's prediction stands alone.

Where the fallback is right to the nanosecond, nothing is changed by what was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec

from stepwell.core.config import CostConfig
from stepwell.core.config_types import Name, Options
from stepwell.core.protocols import BatchShape, CostModel
from stepwell.core.registry import make_cost_model
from stepwell.sim.cost.reach import COUNTS, reach_of
from stepwell.sim.cost.running import run_by_steps
from stepwell.sim.extrapolation import Extrapolation, StepTimeSource
from stepwell.sim.step_reader import MeasuredStep

DIGITS = 5
"""Binary digits of a count that must agree."""

MOST_ROWS = 20_000
"""Kinds of batches that are kept: those with the most steps."""

NAME = "stepwell.sim.whatif.measured:Measured"

_Int = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]
Row = tuple[_Int, _Int, _Int, _Int, _Int, _Int, _Int, _Int]
"""The counts of a batch in the order of ``BatchShape``, and what was measured beyond the prediction (ns)."""

Key = tuple[int, ...]


def first_digits(count: int) -> int:
    """The count with all but its first five binary digits made 0."""
    beyond = count.bit_length() - DIGITS
    return count if beyond <= 0 else count >> beyond << beyond


def key_of(shape: BatchShape) -> Key:
    """What coinciding batches have in common."""
    return tuple([first_digits(getattr(shape, name)) for name in COUNTS])


class Measured:
    """A cost model; see the module.  ``measured_cost`` makes its options."""

    name = "measured"

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """``rows`` that were measured; ``model`` and its ``options`` predict the rest."""

        rows: tuple[Row, ...] = ()
        model: Name = "linear"
        options: Options = {}

    def __init__(self, options: Options) -> None:
        self.options = options
        self.fallback: CostModel = make_cost_model(CostConfig(model=options.model, options=options.options))
        self._beyond: dict[Key, int] = {key_of(BatchShape(*row[:-1])): row[-1] for row in options.rows}

    def coincides(self, shape: BatchShape) -> bool:
        """Whether a step of this kind was measured."""
        return key_of(shape) in self._beyond

    def step_ns(self, shape: BatchShape) -> int:
        """Time of one step, at least 1."""
        return max(1, self.fallback.step_ns(shape) + self._beyond.get(key_of(shape), 0))

    def run_ns(self, shape: BatchShape, start_ns: int, steps: int, until_ns: int) -> list[int]:
        """End times of steps that each read ``decode_requests`` KV tokens more; see ``run_by_steps``."""
        return run_by_steps(self.step_ns, shape, start_ns, steps, until_ns)

    def counting(self) -> Coinciding:
        """Counts the steps of a run by where their times come from."""
        reach = reach_of(self.fallback)
        return Coinciding(self.coincides, Extrapolation(reach) if reach is not None else None)


class Coinciding:
    """Steps that coincide with measured ones; of the others, those beyond the fallback's reach (None: it has none)."""

    def __init__(self, coincides: Callable[[BatchShape], bool], beyond: Extrapolation | None) -> None:
        self._coincides = coincides
        self._beyond = beyond
        self.steps = 0
        self.measured = 0

    def step(self, shape: BatchShape) -> None:
        """One more."""
        self.steps += 1
        if self._coincides(shape):
            self.measured += 1
        elif self._beyond is not None:
            self._beyond.step(shape)

    def run(self, shape: BatchShape, count: int) -> None:
        """``count`` more, the first shaped ``shape``, each later one reading ``decode_requests`` KV tokens more."""
        step = msgspec.structs.replace(shape)
        more = shape.decode_requests
        while count > 0:
            beyond = max(0, step.kv_tokens.bit_length() - DIGITS)
            left = ((step.kv_tokens >> beyond) + 1 << beyond) - step.kv_tokens
            alike = min(count, -(-left // more)) if more else count
            self.steps += alike
            if self._coincides(step):
                self.measured += alike
            elif self._beyond is not None:
                self._beyond.run(step, alike)
            step.kv_tokens += alike * more
            count -= alike

    def source(self) -> StepTimeSource:
        """What is to be said of the run."""
        steps = self.steps or 1
        if self._beyond is None:
            return StepTimeSource("estimated", measured_share=self.measured / steps)
        told = self._beyond.source()
        return StepTimeSource("predicted", self._beyond.outside / steps, told.error_p90, self.measured / steps)


def measured_cost(steps: Sequence[MeasuredStep], fallback: CostConfig) -> CostConfig:
    """The configuration of ``Measured`` for those steps."""
    cost = make_cost_model(fallback)
    groups: dict[Key, list[int]] = {}
    for each in steps:
        groups.setdefault(key_of(each.shape), []).append(each.period_ns - cost.step_ns(each.shape))
    kept = sorted(groups, key=lambda key: -len(groups[key]))[:MOST_ROWS]
    rows = [[*key, _middle(groups[key])] for key in kept]
    return CostConfig(model=NAME, options={"rows": rows, "model": fallback.model, "options": fallback.options})


def _middle(values: list[int]) -> int:
    """The lower of two medians, so that it is one of them."""
    return sorted(values)[(len(values) - 1) // 2]
