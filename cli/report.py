"""``stepwell report``: a comparison that was kept as JSON, drawn and written up."""

from __future__ import annotations

import argparse
from pathlib import Path

from stepwell.sim.compare.result import read
from stepwell.sim.report import write
from stepwell.sim.report.measured import read_measured

HELP = """\
Write one HTML page (no network, readable without scripts) and its pictures (SVG, PNG) from a comparison's JSON:
which policy is better at what, by how much, whether that is real, and why."""

EXAMPLES = """\
examples:
  stepwell compare scenario.toml --policy fcfs --policy chat-batch --out study/    writes study/report.html as well
  stepwell report study/comparison.json --out study/                               writes it again
  stepwell report study/comparison.json --measured fidelity/report.json            with predicted against real

docs/report.md says what each part answers.
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="RESULT.json", help="of stepwell compare --out or --json")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write it (the folder of RESULT.json)")
    parser.add_argument("--measured", type=Path, metavar="FILE", help="JSON of stepwell fidelity or stepwell calibrate")
    parser.add_argument("--no-closeup", action="store_true", help="run nothing again: no pictures of single requests")


def run(args: argparse.Namespace) -> int:
    comparison = read(args.file)
    measured = read_measured(args.measured) if args.measured is not None else None
    page = write(comparison, args.out or args.file.parent, closeup=not args.no_closeup, measured=measured)
    print(f"the report is {page.resolve()}")
    return 0
