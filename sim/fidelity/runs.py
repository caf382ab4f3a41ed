"""Carries a study out, run by run: a finished run is a file, and is not run again.

A folder of a study holds ``runs/NAME.json`` (what clients saw), ``journals/NAME.jsonl`` and, once all runs are there,
the report.  A run that was interrupted leaves no file of the first kind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from stepwell.core.errors import UserError
from stepwell.core.registry import make_cost_model
from stepwell.sim.calibration.calibrate import Calibration, calibrate, predicted
from stepwell.sim.calibration.measured import measured_steps
from stepwell.sim.fidelity.live import ClientView, LiveRun, run_live
from stepwell.sim.fidelity.observed import observed_live
from stepwell.sim.fidelity.predict import at_pace, predict
from stepwell.sim.fidelity.report import House, LiveResult, Predicted, Report, report_of
from stepwell.sim.fidelity.study import (
    Cell,
    Study,
    capacity_cell,
    completed_per_s,
    config_of,
    fit_cells,
    folder,
    in_order,
    predicted_cells,
    workload_of,
)
from stepwell.sim.replay import replay

Tell = Callable[[str], None]


class RunFile(msgspec.Struct):
    """A finished live run.  ``digest`` is the study's, ``capacity`` what its load was a part of."""

    cell: Cell
    digest: str
    capacity: float
    model: str
    where: str
    requests: list[ClientView]
    took_s: float = 0.0


class Runs:
    """The live runs of a study in ``out``."""

    def __init__(self, study: Study, out: Path, tell: Tell = lambda text: None) -> None:
        self.study = study
        self.cells = list(in_order(study))
        self._runs, self._journals = folder(out, "runs"), folder(out, "journals")
        self._tell = tell

    def missing(self) -> list[Cell]:
        """Those that are not there yet, in the order in which they are run."""
        return [cell for cell in self.cells if not self._file(cell).exists()]

    def carry_out(self, until_s: float = float("inf")) -> bool:
        """Run what is missing; False if ``until_s`` (of ``time.monotonic``) came before the end."""
        missing = self.missing()
        for number, cell in enumerate(missing, 1):
            if time.monotonic() > until_s:
                return False
            self._run(cell, f"{number} of {len(missing)}")
        return True

    def read(self, cell: Cell) -> RunFile:
        """Raises ``UserError`` for a file that is damaged, or of another study."""
        path = self._file(cell)
        try:
            found = msgspec.json.decode(path.read_bytes(), type=RunFile)
        except (OSError, msgspec.DecodeError) as error:
            raise UserError(f"{path} cannot be read: {error}") from None
        if found.digest != self.study.digest:
            raise UserError(f"{path} is of a study with other settings; take another folder", field="out")
        return found

    def journal(self, cell: Cell) -> Path:
        return self._journals / f"{cell.name}.jsonl"

    def capacity(self) -> float:
        """Requests/s that are completed when all are there at once; 1 before that was measured."""
        cell = capacity_cell()
        if not self._file(cell).exists():
            return 1.0
        return completed_per_s([each.last_ns for each in self.read(cell).requests])

    def _run(self, cell: Cell, which: str) -> None:
        capacity = self.capacity()
        workload = workload_of(self.study, cell, capacity)
        self._tell(f"live run {which}: {cell.policy}, " + (f"load {cell.load:g}" if cell.load else "all at once"))
        began = time.monotonic()
        live: LiveRun = run_live(config_of(self.study, cell.policy), workload, self.journal(cell), seed=self.study.seed)
        took_s = round(time.monotonic() - began, 1)
        made = RunFile(cell, self.study.digest, capacity, live.model, live.where, live.requests, took_s)
        path = self._file(cell)
        begun = path.with_suffix(".part")
        begun.write_bytes(msgspec.json.encode(made))
        begun.replace(path)

    def _file(self, cell: Cell) -> Path:
        return self._runs / f"{cell.name}.json"


def report(runs: Runs, *, cost_model: str, tell: Tell = lambda text: None) -> Report:
    """Fit, predict and compare; all runs have to be there."""
    study, capacity = runs.study, runs.capacity()
    calibrations = [_fitted(runs, run, cost_model, tell) for run in range(study.runs)]
    live: dict[House, list[LiveResult]] = {}
    told: dict[House, list[Predicted]] = {}
    for cell in predicted_cells(study):
        tell(f"{cell.name}: deciding again, predicting")
        calibration = calibrations[cell.run]
        found = _live_result(runs, cell, calibration)
        live.setdefault(cell.house, []).append(found)
        told.setdefault(cell.house, []).append(_predicted(study, cell, calibration, capacity, found.step_ratio))
    first = runs.read(capacity_cell())
    return report_of(study, capacity, calibrations, (first.model, first.where), live, told)


def _fitted(runs: Runs, run: int, cost_model: str, tell: Tell) -> Calibration:
    """The cost model of one round, fitted to the live runs that lie among those of the round."""
    cells = [capacity_cell(), *fit_cells(runs.study, run)]
    tell(f"fitting {cost_model} to {len(cells)} runs of round {run + 1}")
    return calibrate([step for cell in cells for step in measured_steps(runs.journal(cell))], model=cost_model)


def _live_result(runs: Runs, cell: Cell, calibration: Calibration) -> LiveResult:
    found, journal = runs.read(cell), runs.journal(cell)
    again = replay(journal)
    late_ns = [each.late_ns for each in found.requests]
    return LiveResult(
        observed_live(found.requests, journal),
        sum(late_ns) / len(late_ns) / 1e6,
        again.turns,
        f"{cell.name}: {again.difference}" if again.difference is not None else "",
        predicted(make_cost_model(calibration.cost), measured_steps(journal)).total().ratio,
    )


def _predicted(study: Study, cell: Cell, calibration: Calibration, capacity: float, ratio: float) -> Predicted:
    config, workload = config_of(study, cell.policy), workload_of(study, cell, capacity)
    observed, source = predict(config, calibration.cost, workload)
    at_own_pace, _ = predict(config, at_pace(calibration.cost, ratio), workload)
    return Predicted(observed, at_own_pace.metrics, source.extrapolated_share)


def write_runs(runs: Runs, path: Path) -> None:
    """All runs as JSON lines, to be kept beside a report."""
    lines: Sequence[RunFile] = [runs.read(cell) for cell in runs.cells]
    path.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in lines))
