"""Where the step times of a run that did not happen come from.

Of a simulated journal: its own cost model, which then coincides with the record everywhere.  Of a live one: measured
times where batches coincide (``measured``), and elsewhere a model fitted to the journal's own steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stepwell.core.config import Config, CostConfig
from stepwell.sim.calibration.calibrate import FEWEST, calibrate
from stepwell.sim.step_reader import MeasuredStep
from stepwell.sim.whatif.measured import measured_cost
from stepwell.sim.wording import many

MODEL = "curve"


class StepTimeModel(msgspec.Struct, frozen=True):
    """``cost`` says every step time, ``fallback`` those of batches that were not measured.  ``own``: the journal was
    simulated, with ``cost`` itself.  ``told`` says all that in a sentence."""

    cost: CostConfig
    fallback: CostConfig
    own: bool
    told: str


def step_times(
    config: Config, steps: Sequence[MeasuredStep], *, live: bool, given: CostConfig | None = None, model: str = MODEL
) -> StepTimeModel:
    """The model for runs like the recorded one, which had ``config`` and ``steps``.

    ``given`` takes the place of what would be fitted, or of a simulated journal's own.
    """
    if not live:
        cost = given or config.cost
        same = cost == config.cost
        told = "the journal was simulated: its own cost model says all step times, as it did then"
        if not same:
            told = f"the journal was simulated; step times are now those of {cost.model}, not its own"
        return StepTimeModel(cost, cost, same, told)
    if given is not None:
        fallback, source = given, f"the cost model {given.model} as it was given"
    elif len(steps) < FEWEST:
        fallback = config.cost
        source = (
            f"the cost model {fallback.model} of its configuration, as {many(len(steps), 'step')} are too few to fit"
        )
    else:
        found = calibrate(steps, model=model)
        fallback = found.cost
        source = (
            f"a {model} fitted to {many(found.fitted, 'of its step')} (nine in ten others within"
            f" {100 * found.errors.p90:.1f} %)"
        )
    told = f"step times are measured where batches coincide with recorded ones, and elsewhere predicted by {source}"
    return StepTimeModel(measured_cost(steps, fallback), fallback, False, told)
