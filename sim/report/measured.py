"""Predicted against real: what ``stepwell fidelity`` or ``stepwell calibrate`` found, drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from stepwell.core.errors import UserError
from stepwell.sim.fidelity.report import CellReport
from stepwell.sim.report import style
from stepwell.sim.step_times import ShapeTimes

_SHOWN = {"ttft_mean_ms": "Time to first token, mean", "tpot_mean_ms": "Time per output token, mean"} | {
    "e2e_mean_ms": "Time to last token, mean"
}
_BAND = 0.05


class Measured(msgspec.Struct, frozen=True):
    """The part of either file that is drawn: ``cells`` of a fidelity study, ``shapes`` of a calibration."""

    cells: list[CellReport] = []
    shapes: list[ShapeTimes] = []


def read_measured(path: str | Path) -> Measured:
    """From ``report.json`` of a fidelity study, or ``stepwell calibrate --out FILE.json``.  Raises ``UserError``."""
    try:
        found = msgspec.json.decode(Path(path).read_bytes(), type=Measured)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}", field="measured") from None
    except msgspec.DecodeError as error:
        raise UserError(
            f"{path} is neither of a fidelity study nor of a calibration ({error})", field="measured"
        ) from None
    if not (found.cells or found.shapes):
        raise UserError(f"{path} is neither of a fidelity study nor of a calibration", field="measured")
    return found


def against_real(measured: Measured | None) -> Any | None:
    """Runs if there are any, otherwise steps."""
    if measured is None:
        return None
    return _runs(measured.cells) if measured.cells else _steps(measured.shapes)


def _runs(cells: Sequence[CellReport]) -> Any:
    """A mark a policy and load: predicted over real."""
    figure, (panels,) = style.sheet(1, len(_SHOWN), height=3.3)
    policies = list(dict.fromkeys(each.policy for each in cells))
    for axes, (metric, title) in zip(panels, _SHOWN.items(), strict=True):
        spots: list[tuple[float, float]] = []
        for index, policy in enumerate(policies):
            mine = [
                (row.real / 1000, row.predicted / 1000)
                for cell in cells
                if cell.policy == policy
                for row in cell.metrics
                if row.metric == metric and row.real > 0 and row.predicted > 0
            ]
            if mine:
                axes.plot(*zip(*mine, strict=True), **style.line(index, policy) | {"linestyle": ""})
            spots += mine
        _diagonal(axes, spots)
        style.dress(axes, title, "real, seconds (log)", "predicted, seconds (log)")
    shares = [each.extrapolated_share for each in cells if each.extrapolated_share is not None]
    if shares:
        style.sign(figure, f"{100 * sum(shares) / len(shares):.1f} % of steps extrapolated")
    style.legend(figure, panels)
    return figure


def _steps(shapes: Sequence[ShapeTimes]) -> Any:
    """A mark a shape of step, as large as it was frequent."""
    figure, ((axes,),) = style.sheet(1, 1, width=5.5, height=4.6)
    most = max(each.steps for each in shapes)
    spots = [(each.measured_p50_ms, each.predicted_p50_ms) for each in shapes]
    sizes = [12 + 150 * each.steps / most for each in shapes]
    axes.scatter(
        *zip(*spots, strict=True), sizes, color=style.colour(0), alpha=0.55, linewidths=0, label="shape of step"
    )
    _diagonal(axes, spots)
    style.dress(axes, "Step time by shape, median", "measured, ms (log)", "predicted, ms (log)")
    style.legend(figure, [axes])
    return figure


def _diagonal(axes: Any, spots: Sequence[tuple[float, float]]) -> None:
    """Where predicted is real, and a band around it."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    if spots:
        values = [each for spot in spots for each in spot]
        ends = [min(values) / 1.3, max(values) * 1.3]
        axes.plot(ends, ends, color=style.INK, linewidth=1, label="predicted as it was")
        low, high = [each * (1 - _BAND) for each in ends], [each * (1 + _BAND) for each in ends]
        axes.fill_between(ends, low, high, color=style.GRID, linewidth=0, label=f"within {100 * _BAND:.0f} %")
        axes.set_xlim(*ends)
        axes.set_ylim(*ends)
    style.plain_log(axes.xaxis)
    style.plain_log(axes.yaxis)
