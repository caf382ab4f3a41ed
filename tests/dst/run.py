"""Lives a scenario and holds it to the laws."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import structlog

from stepwell.tests.dst.draw import scenario_of
from stepwell.tests.dst.laws import check
from stepwell.tests.dst.life import Life, live
from stepwell.tests.dst.scenario import Scenario
from stepwell.tests.stateful.rows import must


def command(seed: int) -> str:
    """What repeats a seed."""
    return f"python -m stepwell.tests.dst --seed {seed}"


def lived_twice(seed: int) -> bool:
    """Whether a seed among many is lived twice: the second life writes the same journal."""
    return seed % 8 == 0


def drop(*_: object) -> Any:
    """A processor of ``structlog`` that says nothing: of every fault the engine logs a traceback."""
    raise structlog.DropEvent


def hold(scenario: Scenario, folder: Path, *, twice: bool = False) -> Life:
    """Raises at the first law that is broken.  The journal is left in ``folder``."""
    life = live(scenario, folder)
    check(life)
    if twice:
        written = [path.read_bytes() for path in life.journal]
        again = live(scenario, folder)
        must(written == [path.read_bytes() for path in again.journal], "the same seed wrote another journal")
    return life


def failure_of(scenario: Scenario, folder: Path | None = None, *, twice: bool = False) -> Exception | None:
    """What ``hold`` raises."""
    if folder is None:
        with TemporaryDirectory(prefix="stepwell-dst-") as name:
            return failure_of(scenario, Path(name), twice=twice)
    try:
        hold(scenario, folder, twice=twice)
    except Exception as error:
        return error
    return None


def hold_seeds(first: int, beyond: int, folder: Path) -> None:
    """Hold every seed from ``first`` to below ``beyond``; a failure says how to repeat it."""
    for seed in range(first, beyond):
        failure = failure_of(scenario_of(seed), folder, twice=lived_twice(seed))
        if failure is not None:
            failure.add_note(f"repeat with: {command(seed)}   (--shrink makes it smaller)")
            raise failure
