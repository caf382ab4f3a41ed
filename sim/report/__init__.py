"""A comparison drawn and written up: pictures, and one HTML file that needs nothing else."""

from __future__ import annotations

from pathlib import Path

from stepwell.core.errors import UserError
from stepwell.sim.compare.result import Comparison
from stepwell.sim.report.lookup import Found
from stepwell.sim.report.measured import Measured
from stepwell.sim.report.page import page
from stepwell.sim.report.pictures import Material, draw
from stepwell.sim.report.style import can_draw
from stepwell.sim.report.window import Window, windows

PAGE = "report.html"


def write(
    comparison: Comparison, folder: str | Path, *, closeup: bool = True, measured: Measured | None = None
) -> Path:
    """Write ``report.html`` and ``pictures/`` into ``folder``; returns the page.

    ``closeup``: two runs are made again, to look at single requests and steps.  ``measured``: predictions beside what
    was real, to be drawn as well.  Without matplotlib there are no pictures, and the page says so.  Raises
    ``UserError`` if the folder cannot be written to.
    """
    folder = Path(folder)
    found = Found(comparison)
    remarks: list[str] = []
    seen: list[Window] = []
    if closeup and can_draw() and comparison.cells:
        try:
            seen = windows(found)
        except UserError as error:
            remarks.append(f"Pictures of single requests and steps are left out: {error}.")
    material = Material(found, seen, measured)
    pictures = list(draw(material, folder)) if can_draw() and comparison.cells else []
    path = folder / PAGE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(page(found, pictures, remarks), encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}", field="report") from None
    return path
