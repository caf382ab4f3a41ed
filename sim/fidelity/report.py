"""From the runs of a study to what is reported: errors beside what separates two real runs, agreement, ordering."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from stepwell.sim.calibration.calibrate import Calibration
from stepwell.sim.fidelity.agreement import Agreement, agreement
from stepwell.sim.fidelity.observed import METRICS, Observed
from stepwell.sim.fidelity.ordering import Ordering, floor, mean, ordering, spread_of
from stepwell.sim.fidelity.study import Study

TARGETS: dict[str, tuple[float, float]] = {
    "ttft_mean_ms": (0.05, 0.0),
    "ttft_p99_ms": (0.05, 2.0),
    "tpot_mean_ms": (0.02, 1.0),
    "tpot_p99_ms": (0.05, 2.0),
    "e2e_mean_ms": (0.02, 1.0),
    "e2e_p99_ms": (0.05, 2.0),
}
"""The error that a metric may have, or so many times the floor if that is more."""
RIGHT, WRONG_BY, PAIRS = 0.95, 0.10, 20
"""Of the pairs so many are to be ordered right, none wrong by more, and there are to be so many."""
LATE = 0.05
"""A client that hands requests in later than this part of the mean TTFT measures itself."""

House = tuple[str, float]


class LiveResult(msgspec.Struct):
    """One live run of the second half, as far as the report needs it."""

    observed: Observed
    late_ms: float
    """Mean delay of the client itself."""
    turns: int
    """Turns decided again from the journal."""
    difference: str = ""
    """The first decision that was not the recorded one; empty: none."""
    step_ratio: float = 1.0
    """What its steps took by what the cost model says of steps of these very shapes, in sum."""


class Predicted(msgspec.Struct):
    """What is predicted of one live run.  ``paced`` are the metrics when the cost model is told one number of that run,
    its ``step_ratio``: what is wrong with them is not the machine's speed."""

    observed: Observed
    paced: dict[str, float]
    extrapolated_share: float | None


class MetricRow(msgspec.Struct, frozen=True):
    """One metric of one cell.  ``error`` is (predicted − real) / real; ``spread`` how far this cell's real runs are
    apart, by their mean; ``met`` None where there is no target; ``paced_error`` is the error of ``Predicted.paced``."""

    metric: str
    real: float
    predicted: float
    error: float
    spread: float | None
    met: bool | None
    paced_error: float | None = None


class CellReport(msgspec.Struct, frozen=True):
    """One policy at one load.  ``between_runs`` is what two real runs agree on, ``agreement`` what the first of them
    and the prediction do."""

    policy: str
    load: float
    metrics: list[MetricRow]
    agreement: Agreement
    between_runs: Agreement | None
    extrapolated_share: float | None
    valid: bool
    late_ms: float
    step_ratios: list[float] = []
    """By run: see ``LiveResult``.  None in reports from before there were rounds."""


class LoadReport(msgspec.Struct, frozen=True):
    """One metric at one load over all policies: the floor (root mean square of the spreads), mean and largest |error|,
    and how many cells met the target."""

    load: float
    metric: str
    floor: float | None
    mean_error: float
    bias: float
    worst_error: float
    worst_policy: str
    met: int | None
    cells: int
    paced_error: float | None = None
    """The mean of |error| when each prediction is told its run's ``step_ratio``."""


class Report(msgspec.Struct, frozen=True):
    """All of it."""

    study: Study
    capacity_per_s: float
    calibrations: list[Calibration]
    """By round."""
    model: str
    where: str
    cells: list[CellReport]
    loads: list[LoadReport]
    ordering: Ordering
    live_runs: int
    turns: int
    different: list[str]
    """Journals that were not decided again as recorded."""
    paced_ordering: Ordering | None = None
    """As ``ordering``, when each prediction is told its run's ``step_ratio``."""


def report_of(
    study: Study,
    capacity_per_s: float,
    calibrations: Sequence[Calibration],
    model: tuple[str, str],
    live: Mapping[House, Sequence[LiveResult]],
    predicted: Mapping[House, Sequence[Predicted]],
) -> Report:
    """``live`` runs and what is predicted of them, by policy and load and then by round.  What is predicted of a cell
    is the mean over rounds, as what is real."""
    real = {house: [each.observed.metrics for each in runs] for house, runs in live.items()}
    floors = {
        (load, metric): floor([runs for (_, at), runs in real.items() if at == load], metric)
        for load in sorted({load for _, load in real})
        for metric in METRICS
    }
    cells = [_cell(house, runs, predicted[house], floors) for house, runs in live.items()]
    results = [each for runs in live.values() for each in runs]
    return Report(
        study,
        capacity_per_s,
        list(calibrations),
        *model,
        cells,
        [_load(load, metric, least, cells) for (load, metric), least in floors.items()],
        ordering(real, {house: _means([each.observed.metrics for each in told]) for house, told in predicted.items()}),
        len(results),
        sum(each.turns for each in results),
        [each.difference for each in results if each.difference],
        ordering(real, {house: _means([each.paced for each in told]) for house, told in predicted.items()}),
    )


def _cell(
    house: House,
    runs: Sequence[LiveResult],
    predicted: Sequence[Predicted],
    floors: Mapping[tuple[float, str], float | None],
) -> CellReport:
    means, paced = _means([each.observed.metrics for each in predicted]), _means([each.paced for each in predicted])
    shares = [each.extrapolated_share for each in predicted if each.extrapolated_share is not None]
    real = [each.observed.metrics for each in runs]
    rows = []
    for metric in METRICS:
        value, told = mean(real, metric), means[metric]
        error = _error(told, value)
        met = _met(metric, error, floors[house[1], metric])
        rows.append(MetricRow(metric, value, told, error, spread_of(real, metric), met, _error(paced[metric], value)))
    late_ms = max(each.late_ms for each in runs)
    return CellReport(
        *house,
        rows,
        agreement(runs[0].observed, predicted[0].observed),
        agreement(runs[0].observed, runs[1].observed) if len(runs) > 1 else None,
        sum(shares) / len(shares) if shares else None,
        late_ms <= LATE * mean(real, "ttft_mean_ms"),
        late_ms,
        [each.step_ratio for each in runs],
    )


def _means(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {metric: mean(runs, metric) for metric in METRICS}


def _error(predicted: float, real: float) -> float:
    return (predicted - real) / real if real else 0.0


def _met(metric: str, error: float, least: float | None) -> bool | None:
    if metric not in TARGETS:
        return None
    allowed, floors = TARGETS[metric]
    return abs(error) <= max(allowed, floors * (least or 0.0))


def _load(load: float, metric: str, least: float | None, cells: Sequence[CellReport]) -> LoadReport:
    rows = [(cell.policy, row) for cell in cells if cell.load == load for row in cell.metrics if row.metric == metric]
    errors = [abs(row.error) for _, row in rows]
    worst = max(rows, key=lambda each: abs(each[1].error))
    return LoadReport(
        load,
        metric,
        least,
        sum(errors) / len(errors),
        sum(row.error for _, row in rows) / len(rows),
        max(errors),
        worst[0],
        sum(row.met is True for _, row in rows) if metric in TARGETS else None,
        len(rows),
        sum(abs(row.paced_error or 0.0) for _, row in rows) / len(rows),
    )
