"""One section in this process: ``python -m stepwell.benchmarks.gpu.section NAME FILE SECONDS``.

Whatever it finds is printed and written at once, as a fault of the card may end it at any moment.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

from stepwell.benchmarks.gpu import table
from stepwell.benchmarks.gpu.lines import Line, said, write
from stepwell.benchmarks.gpu.sections import DEVICE, SECTIONS


def measure(name: str, seconds: float, tell: Callable[[Line], None]) -> None:
    """Tell the figures of a section.  Raises ``KeyError`` for an unknown one."""
    section = {each.name: each for each in SECTIONS}[name]
    from stepwell.benchmarks.gpu.bench import make_bench  # lazy: torch, which whoever collects the lines may not have

    bench = make_bench(name, seconds, tell)
    tell(said(name, DEVICE, bench.device.type))
    importlib.import_module(f"stepwell.benchmarks.gpu.{section.module}").run(bench)


def main(name: str, file: str, seconds: str) -> None:
    def tell(line: Line) -> None:
        write(Path(file), [line])
        if line.what != DEVICE:
            print(*table.figures([line]), sep="\n", flush=True)

    measure(name, float(seconds), tell)


if __name__ == "__main__":
    main(*sys.argv[1:])
