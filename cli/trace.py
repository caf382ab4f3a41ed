"""``stepwell trace``: a journal as a timeline for Perfetto."""

from __future__ import annotations

import argparse
from pathlib import Path

from stepwell.cli.journal import time_ns
from stepwell.cli.progress import Bar
from stepwell.core.types import FOREVER
from stepwell.sim.timeline_file import write_timeline

HELP = """\
Write a journal as a timeline that ui.perfetto.dev and chrome://tracing open: every step, every request with what it
waited for, every preemption, and the queue and the KV pages over time."""

EXAMPLES = """\
examples:
  stepwell trace run.jsonl                                writes run.trace.json.gz
  stepwell trace run.jsonl --from 30s --to 45s             15 s of it
  stepwell trace run.jsonl --out run.json

Open ui.perfetto.dev in a browser and drop the file on it: the file stays on your machine.  docs/report.md says what
is on which track.
"""

_TIME = "as 12.5s, or nanoseconds without a unit; of the run's clock"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="JOURNAL", help="journal (its first segment), of either shell")
    parser.add_argument("--out", type=Path, metavar="FILE", help="FILE.json or FILE.json.gz (JOURNAL.trace.json.gz)")
    parser.add_argument("--from", dest="start", metavar="TIME", help=_TIME)
    parser.add_argument("--to", dest="stop", metavar="TIME", help="likewise")


def run(args: argparse.Namespace) -> int:
    out = args.out or args.file.with_name(f"{args.file.stem}.trace.json.gz")
    from_ns = 0 if args.start is None else time_ns(args.start)
    to_ns = FOREVER if args.stop is None else time_ns(args.stop, field="--to")
    with Bar("reading the journal") as bar:
        written = write_timeline(args.file, out, from_ns=from_ns, to_ns=to_ns, told=bar)
    print(f"{out}: {written.events} events; open it in ui.perfetto.dev or chrome://tracing")
    return 0
