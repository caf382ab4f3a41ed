"""Steps of a live journal, each with its shape and what it took.

What is measured is the **period** of a step: from its launch, or from the end of the step before it if that came
later, to the turn in which the scheduler heard of its end.  The next step is launched in that very turn, so periods
hold the whole loop of an engine (the device, the way there and back, the decision), and no time in which there was
nothing to do.  What the device said it took (``elapsed_ns``) leaves the rest out, and whoever adds that up predicts an
engine that nobody has.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stepwell.core.errors import UserError
from stepwell.sim.journal_read import MISFIT, SIMULATED, config_of, misfit, steps_of, stretches
from stepwell.sim.step_reader import MeasuredStep

IMAGINARY = {
    "costmodel": "a rehearsal: a cost model said how long its steps took",
    "echo": "it says prompts again, with next to no work",
}
"""By name, the models whose steps tell nothing of a machine that serves one, and why."""


def imaginary(path: Path) -> str:
    """Why the live journal that begins at ``path`` tells nothing of a machine; empty if a real model was served.

    Raises ``UserError`` for a damaged journal.
    """
    header = stretches(path)[0].header
    model = config_of(header, str(path)).model.path
    return f"model {model!r} is {IMAGINARY[model]}" if header.shell != SIMULATED and model in IMAGINARY else ""


def measured_steps(path: Path, progress: Callable[[int], None] | None = None) -> list[MeasuredStep]:
    """Every step of the journal that begins at ``path``, in order; failed ones, and those of unknown shape, left out.

    Raises ``UserError`` for a damaged journal, and for a simulated one.
    """
    parts = stretches(path, progress)
    if parts[0].header.shell == SIMULATED:
        raise UserError(f"{path} was simulated: its step times are predictions, and nothing can be learnt from them")
    try:
        return [step for part in parts for step in steps_of(part)]
    except MISFIT as error:
        raise misfit(path, error) from None
