"""``stepwell replay``: does the scheduler still decide what a journal says it decided?"""

from __future__ import annotations

import argparse
from pathlib import Path

from stepwell.cli.progress import Bar
from stepwell.sim.replay import replay
from stepwell.sim.wording import many

HELP = """\
Decide a recorded run again from its events, and hold every instruction to the record.
Exit status 0 if every decision is the recorded one, 1 if not."""

EXAMPLES = """\
examples:
  stepwell sim --journal run.jsonl && stepwell replay run.jsonl
  stepwell replay night.jsonl --plugins /etc/stepwell   policy files that the configuration names lie there
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="journal (its first segment)")
    parser.add_argument("--plugins", type=Path, metavar="DIR", help="folder that plugin files are looked for in")


def run(args: argparse.Namespace) -> int:
    with Bar("replaying") as bar:
        report = replay(args.file, base=args.plugins, progress=bar)
    covered = f"{many(report.turns, 'turn')}, {many(report.steps, 'step')}"
    if report.difference is not None:
        print(f"DIFFERENT after {covered}: {report.difference}")
        return 1
    gaps = f" ({many(report.gaps, 'gap')} in the journal were passed over)" if report.gaps else ""
    if report.turns:
        print(f"{covered}, every decision as recorded{gaps}")
    else:
        print(f"{args.file} holds no turn: there was nothing to decide again{gaps}")
    if report.torn_bytes:
        print(f"the last line is torn ({many(report.torn_bytes, 'byte')} ignored)")
    if report.unfinished:
        print(f"{many(report.unfinished, 'request')} unfinished at the end")
    return 0
