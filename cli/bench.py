"""``stepwell bench``: how fast this machine runs the scheduler and the simulator."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from stepwell.core.registry import load
from stepwell.sim.bench import REPEATS, STEPS, Line, as_json, bench_scheduler, bench_sim

HELP = "Measure the scheduler (time of a step) or the simulator (requests per second) on this machine."

EXAMPLES = """\
examples:
  stepwell bench scheduler
  stepwell bench scheduler --policy chat-batch --json
  stepwell bench sim --requests 20000 --repeats 1
  stepwell bench sim --traces ../shared/traces --json > speed.jsonl

--json prints one object a line.  Times end in _us, speeds in _per_s, memory in _mb (the most so far); a line
"machine" says how fast plain Python runs, to compare figures of different machines by;
"build" is "pure" or "compiled".
"""

_TRACES = Path("../shared/traces")


def arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="what", required=True, metavar="scheduler|sim")
    scheduler = commands.add_parser("scheduler", help="microseconds of a step, by requests running and waiting")
    scheduler.add_argument(
        "--steps", type=_positive, default=STEPS, metavar="N", help=f"timed steps a figure ({STEPS})"
    )
    sim = commands.add_parser("sim", help="requests simulated a second, journal on and off")
    sim.add_argument("--requests", type=_positive, default=100_000, metavar="N", help="of the common workload (100000)")
    sim.add_argument("--repeats", type=_positive, default=REPEATS, metavar="N", help=f"runs a figure ({REPEATS})")
    sim.add_argument("--traces", type=Path, default=_TRACES, metavar="DIR", help=f"where traces lie ({_TRACES})")
    for command in (scheduler, sim):
        command.add_argument("--policy", default="fcfs", metavar="NAME", help="scheduling policy (fcfs)")
        command.add_argument("--json", action="store_true", help="one JSON object a line")


def run(args: argparse.Namespace) -> int:
    load("policies", args.policy)
    lines: Iterator[Line]
    if args.what == "scheduler":
        lines = bench_scheduler(args.policy, steps=args.steps)
    else:
        lines = bench_sim(args.policy, requests=args.requests, repeats=args.repeats, traces=args.traces)
    for line in lines:
        print(as_json(line) if args.json else in_words(line))
        sys.stdout.flush()
    return 0


def in_words(line: Line) -> str:
    """A line for a person."""
    if line["bench"] == "machine":
        speed = f"{line['loop_ns_per_iteration']} ns an iteration of plain Python {line['python']}"
        return f"machine: {speed}; Stepwell's core is {line['build']}"
    if "skipped" in line:
        return f"{line['workload']}: skipped, {line['skipped']}"
    if line["bench"] == "sim":
        journal = f"journal {line['journal_bytes_per_request']} bytes a request" if line["journal"] else "no journal"
        return (
            f"{line['policy']}, {line['workload']} at load {line['load']}, {journal}:"
            f" {line['requests_per_s']:,} requests/s (best {line['requests_per_s_best']:,}),"
            f" {line['steps_per_s']:,} steps/s, {line['preemptions']} preemptions, {line['rss_mb']} MB"
        )
    if "change_p50_us" in line:
        return (
            f"{line['policy']}, {line['running']} running, {line['waiting']} waiting: a step with an arrival, an end"
            f" and an admission takes {line['change_p50_us']} µs (p99 {line['change_p99_us']})"
        )
    return (
        f"{line['policy']}, {line['running']} running: a steady decode step takes {line['steady_p50_us']} µs"
        f" (p99 {line['steady_p99_us']}), {line['steady_asked_p50_us']} µs when the policy is asked every time"
    )


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {value}")
    return value
