"""Fits a cost model to measured steps, and says how well it predicts steps that it was not fitted on."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from stepwell.core.config import CostConfig
from stepwell.core.errors import UserError
from stepwell.core.protocols import CostModel
from stepwell.core.registry import make_cost_model
from stepwell.sim.calibration.columns import COUNT_OF, evidence
from stepwell.sim.calibration.fits import FITS
from stepwell.sim.cost.reach import COUNTS, Reach
from stepwell.sim.stats import percentiles
from stepwell.sim.step_reader import MeasuredStep
from stepwell.sim.step_times import ShapeTimes, StepTime, StepTimes, TotalTimes

HELD_OUT = 0.2
"""Part of the steps that the fit does not see."""
FEWEST = 20
"""Steps that a fit needs."""


class StepErrors(msgspec.Struct, frozen=True):
    """|measured − predicted| / predicted over steps; ``bias`` is the sum measured by the sum predicted, less 1."""

    steps: int
    mean: float
    p50: float
    p90: float
    p99: float
    bias: float


class Calibration(msgspec.Struct, frozen=True):
    """What came of it.  ``cost`` is the ``[cost]`` of a configuration; ``errors`` are of the held-out steps.

    ``assumed`` coefficients are the model's defaults, as fewer than ``columns.TELLING`` of the fitted steps had what
    they are of; ``evidence`` says of each coefficient how many had.  ``shapes`` and ``total`` are of
    all steps, where ``recorded`` is what the device said, without the engine's loop around it.
    """

    cost: CostConfig
    fitted: int
    seed: int
    errors: StepErrors
    assumed: list[str]
    shapes: list[ShapeTimes]
    total: TotalTimes
    evidence: dict[str, int] = {}


def calibrate(steps: Sequence[MeasuredStep], *, model: str = "linear", seed: int = 0) -> Calibration:
    """Fit ``model`` to four fifths of the steps, drawn by ``seed``; the others tell the error.

    Raises ``UserError`` for an unknown model and for too few steps.
    """
    if model not in FITS:
        raise UserError(f"{model!r} cannot be fitted; there are {', '.join(FITS)}", field="model")
    if len(steps) < FEWEST:
        raise UserError(f"{len(steps)} measured steps are too few: a fit needs {FEWEST}", field="journal")
    order = np.random.default_rng(seed).permutation(len(steps)).tolist()
    cut = round(len(steps) * HELD_OUT)
    fitted, held_out = [steps[at] for at in order[cut:]], [steps[at] for at in order[:cut]]
    options, assumed = FITS[model](fitted)
    errors = errors_of(make_cost_model(CostConfig(model=model, options=options)), held_out)
    reach = reach_over(fitted, errors.p90)
    cost = CostConfig(model=model, options={**options, "reach": msgspec.to_builtins(reach)})
    times = predicted(make_cost_model(cost), steps)
    told = {name: evidence(fitted, name) for name in options if name in COUNT_OF}
    return Calibration(cost, len(fitted), seed, errors, assumed, times.by_shape(), times.total(), told)


def reach_over(steps: Sequence[MeasuredStep], error_p90: float) -> Reach:
    """The least and the most of each count."""
    bounds = {}
    for name in COUNTS:
        values = [getattr(each.shape, name) for each in steps]
        bounds[name] = (min(values), max(values))
    return Reach(**bounds, error_p90=round(error_p90, 6), steps=len(steps))


def errors_of(cost: CostModel, steps: Sequence[MeasuredStep]) -> StepErrors:
    """How far the model is from what was measured."""
    told: npt.NDArray[np.float64] = np.array([cost.step_ns(each.shape) for each in steps], np.float64)
    took: npt.NDArray[np.float64] = np.array([each.period_ns for each in steps], np.float64)
    error = np.abs(took / told - 1.0)
    p50, p90, p99 = (float(each or 0.0) for each in percentiles(error, (0.5, 0.9, 0.99)))
    return StepErrors(len(steps), float(error.mean()), p50, p90, p99, float(took.sum() / told.sum() - 1.0))


def predicted(cost: CostModel, steps: Sequence[MeasuredStep]) -> StepTimes:
    """Measured periods beside the model's, and what the device said as ``recorded``."""
    times = StepTimes(live=True)
    times.steps = [StepTime(each.shape, each.period_ns, cost.step_ns(each.shape), each.elapsed_ns) for each in steps]
    return times
