"""Everything about the card in one command, see ``benchmarks/gpu.sh`` and docs/cuda.md.

    benchmarks/gpu.sh                         everything; without a GPU at toy size on the processor
    benchmarks/gpu.sh --only speed,engine     these sections

Prints what it finds as it finds it, then the targets, and writes all of it as one JSON object a line.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path

from stepwell.benchmarks.gpu import table
from stepwell.benchmarks.gpu.lines import Line, not_measured, read, write
from stepwell.benchmarks.gpu.sections import CARD, CPU, DEVICE, SECTIONS, TOTAL_S, Section
from stepwell.benchmarks.gpu.targets import TARGETS, Outcome, outcome

RESULTS = Path(__file__).resolve().parents[1] / "results"
_INTERPRETED = 5.0
"""Times as long is waited where kernels are interpreted: nothing is measured there, and the machine may be busy."""
_GRACE_S = 10.0
"""What a section may take beyond its time before it is ended."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [each.name for each in SECTIONS]
    parser.add_argument("--only", default=",".join(names), help="sections, with commas between them (all)")
    parser.add_argument(
        "--out", type=Path, help="file for the lines (on a card one in benchmarks/results, by the date)"
    )
    args = parser.parse_args()
    asked = args.only.split(",")
    for name in asked:
        if name not in names:
            parser.error(f"no section is called {name!r}; there are {', '.join(names)}")
    lines = [line for each in sections([each for each in SECTIONS if each.name in asked]) for line in each]
    outcomes = judged(lines)
    print("\nTargets", *table.targets(outcomes), sep="\n")
    out = args.out or (RESULTS / f"{date.today()}-gpu.jsonl" if ran_on(lines, CARD) else None)
    if out is not None:
        write(out, [*lines, *map(as_line, outcomes)])
        print(f"\nAll of it is in {out}.")
    sys.exit(any(each.verdict == "miss" for each in outcomes))


def sections(asked: Sequence[Section]) -> Iterator[list[Line]]:
    """The lines of one after the other; they share what time there is."""
    patience = 1.0 if os.environ.get("TRITON_INTERPRET") != "1" else _INTERPRETED
    until_s = time.monotonic() + patience * TOTAL_S
    for section in asked:
        print(f"\n{section.title}", flush=True)
        seconds = min(patience * section.seconds, until_s - time.monotonic() - _GRACE_S)
        found, trouble = in_process(section, seconds) if seconds > 0 else ([], "no time was left")
        if trouble:
            found += [
                not_measured(section.name, f"the rest of '{section.title}'", trouble, key)
                for key in section.targets or ("",)
            ]
            print(*table.figures(found[-1:]), sep="\n", flush=True)
        yield found


def in_process(section: Section, seconds: float) -> tuple[list[Line], str]:
    """What a section found in a process of its own, and what ended it early."""
    with tempfile.TemporaryDirectory(prefix="stepwell-gpu-") as folder:
        found, errors = Path(folder, "lines"), Path(folder, "errors")
        command = [sys.executable, "-m", "stepwell.benchmarks.gpu.section", section.name, str(found), str(seconds)]
        with errors.open("w") as stderr:
            try:
                code = subprocess.run(command, stderr=stderr, timeout=seconds + _GRACE_S, check=False).returncode
            except subprocess.TimeoutExpired:
                return list(read(found)), f"it was ended after {seconds + _GRACE_S:.0f} s"
        told = errors.read_text().strip().splitlines()
        return list(read(found)), (told[-1] if told else f"its process ended with {code}") if code else ""


def judged(lines: Sequence[Line]) -> list[Outcome]:
    toy = "there is no GPU" if ran_on(lines, CPU) else ""
    return [outcome(target, lines, toy) for target in TARGETS]


def ran_on(lines: Sequence[Line], device: str) -> bool:
    return any(line.what == DEVICE and line.note == device for line in lines)


def as_line(each: Outcome) -> Line:
    target = each.target
    more: dict[str, object] = {"verdict": each.verdict, "bound": target.bound}
    return Line("targets", target.what, each.value, target.unit, target.key, each.why, more)


if __name__ == "__main__":
    main()
