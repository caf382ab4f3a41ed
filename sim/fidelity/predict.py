"""The simulator's free-running prediction of a live run: the same requests, no time of a step from the record."""

from __future__ import annotations

import msgspec

from stepwell.core.config import Config, CostConfig
from stepwell.sim.extrapolation import StepTimeSource
from stepwell.sim.fidelity.observed import Decisions, Observed, observed_simulated
from stepwell.sim.run import simulate
from stepwell.sim.workload.request import Workload


def at_pace(cost: CostConfig, ratio: float) -> CostConfig:
    """``cost`` on a machine whose steps take ``ratio`` of what it says."""
    options = {"model": cost.model, "options": cost.options, "permille": max(1, round(1000 * ratio))}
    return CostConfig(model="scaled", options=options)


def predict(config: Config, cost: CostConfig, workload: Workload) -> tuple[Observed, StepTimeSource]:
    """What ``cost`` makes of ``workload`` under ``config``, and how far its step times are to be trusted."""
    decisions = Decisions()
    result = simulate(msgspec.structs.replace(config, cost=cost), workload=workload, observers=[decisions.observe])
    told = result.summary
    source = StepTimeSource(told.step_times, told.extrapolated_share, told.step_error_p90)
    return observed_simulated(result.metrics, decisions), source
