"""``stepwell journal``: what a journal records, line by line or in numbers."""

from __future__ import annotations

import argparse
from itertools import islice
from pathlib import Path

import msgspec

from stepwell.cli.progress import Bar
from stepwell.cli.tables import console, print_runs
from stepwell.core.errors import UserError
from stepwell.core.types import NS_PER_S
from stepwell.sim.journal_read import JournalStat, stat, where_it_begins
from stepwell.sim.journal_show import show
from stepwell.sim.wording import many

HELP = "Show what a journal records, or count it and compute the run's summary from it."

EXAMPLES = """\
examples:
  stepwell journal show run.jsonl --limit 20
  stepwell journal show run.jsonl --from 12.5s --request 117
  stepwell journal stat run.jsonl
  stepwell journal stat run.jsonl --json
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="what", required=True, metavar="show|stat")
    lines = commands.add_parser("show", help="one line a turn: time, step, what came in → what was decided")
    lines.add_argument("file", type=Path, metavar="FILE", help="journal (its first segment)")
    lines.add_argument("--from", dest="start", default="0", metavar="TIME", help="12.5s, or nanoseconds without a unit")
    lines.add_argument("--limit", type=int, metavar="N", help="at most N lines")
    lines.add_argument("--request", type=int, default=0, metavar="ID", help="only turns that name this request")
    numbers = commands.add_parser("stat", help="sizes, counts, and the summary of the run")
    numbers.add_argument("file", type=Path, metavar="FILE", help="journal (its first segment)")
    numbers.add_argument("--json", action="store_true", help="as one JSON object")


def run(args: argparse.Namespace) -> int:
    return _show(args) if args.what == "show" else _stat(args)


def time_ns(text: str, *, field: str = "--from") -> int:
    """``12.5s``, ``80ms`` or nanoseconds, from the command line's ``field``."""
    for unit, factor in (("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", NS_PER_S), ("", 1)):
        if text.endswith(unit):
            try:
                return round(float(text.removesuffix(unit)) * factor)
            except (ValueError, OverflowError):
                break
    raise UserError(f"a time is written 12.5s, 80ms, or as nanoseconds; got {text!r}", field=field)


def _show(args: argparse.Namespace) -> int:
    if args.limit is not None and args.limit < 0:
        raise UserError(f"must be at least 0, not {args.limit}", field="--limit")
    told = False
    for line in islice(show(args.file, from_ns=time_ns(args.start), request=args.request), args.limit):
        print(line)
        told = True
    if not told and args.limit != 0:
        raise UserError(f"no turn of {args.file} is what was asked for")
    return 0


def _stat(args: argparse.Namespace) -> int:
    with Bar("reading the journal") as bar:
        found = stat(args.file, bar)
    if args.json:
        print(as_json(found))
        return 0
    to = console()
    for line in lines(found):
        to.print(line)
    to.print()
    if found.summary is not None and found.summary.offered:
        print_runs([found.summary], to)
    return 0


def as_json(found: JournalStat) -> str:
    """Everything but the configuration and the snapshot, which are in the journal."""
    told = msgspec.structs.asdict(found)
    header = msgspec.structs.asdict(found.header)
    told["header"] = {key: value for key, value in header.items() if key not in ("config", "snapshot")}
    return msgspec.json.encode(told).decode()


def lines(found: JournalStat) -> list[str]:
    """The counts, for a person."""
    head = found.header
    span_s = (found.end_ns - found.start_ns) / NS_PER_S
    volume = f"{found.bytes / 1e6:.2f} MB" if found.bytes >= 1e5 else f"{found.bytes} bytes"
    size = f"{volume} in {many(found.segments, 'segment')}"
    each = f", {found.bytes / found.requests:.0f} bytes a request" if found.requests else ""
    told = [
        f"{found.path}: {size}{each}; format {head.stepwell_journal}, level {head.level}",
        f"written by stepwell {head.version} ({head.shell}), policy {head.policy}, options {head.options or 'none'},"
        f" seed {head.seed}, configuration {head.digest[:12]}",
    ]
    if found.turns:
        carried = found.extent.carried
        arrived = f"{many(found.requests, 'request')}{' arrived in it' if carried else ''}"
        told += [
            f"{arrived}, {many(found.turns, 'turn')}, {many(found.steps, 'step')}"
            f" in {many(found.records, 'record')}, over {span_s:.3f} s",
            "events: " + ", ".join(f"{count} {name}" for name, count in found.events.items()),
            "instructions: " + ", ".join(f"{count} {name}" for name, count in found.instructions.items()),
        ]
    else:
        told.append("it holds no turn")
    if begins := where_it_begins(found.extent, found.first_request, found.last_request):
        told.append("; ".join(begins))
    told += [f"GAP: {many(gap.turns, 'turn')} lost ({gap.reason})" for gap in found.gaps]
    if found.torn:
        told.append(f"the last line is torn ({many(found.torn_bytes, 'byte')} ignored)")
    if found.unfinished:
        told.append(f"{many(found.unfinished, 'request')} unfinished at the end")
    if found.partial:
        some = found.summary is not None and found.summary.offered
        over = "the table is over requests that arrive from there on" if some else "no request arrives after it"
        told.append(f"what is left begins with a snapshot: {over}")
    return told
