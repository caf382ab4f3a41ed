"""``stepwell bench``: how fast this machine runs the scheduler, allocators, the simulator, and a serving engine."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from stepwell.cli import bench_engine, bench_memory, bench_streams
from stepwell.core.registry import load, names
from stepwell.sim.bench import REPEATS, REQUESTS, STEPS, Line, as_json, bench_scheduler, bench_sim

HELP = """\
Measure the scheduler (time of a step), the page allocators (time of a page, what is wasted), the simulator (requests
per second), a serving engine under load (tokens per second, latencies), or a server with thousands of streams, on this
machine."""

EXAMPLES = """\
examples:
  stepwell bench scheduler
  stepwell bench scheduler --policy all --json
  stepwell bench scheduler --policy chat-batch --allocator prefix
  stepwell bench memory
  stepwell bench memory --allocator prefix --json
  stepwell bench sim --requests 20000 --repeats 1
  stepwell bench sim --traces ../shared/traces --json > speed.jsonl
  stepwell bench engine                              serves smollm2, and asks it over HTTP
  stepwell bench engine --dtype bfloat16 --workload concurrency-64 --runs 3
  stepwell bench engine --url http://127.0.0.1:8101 --engine vllm --precision bf16
  stepwell bench streams --users 10000               they ask, read, think for a minute, and ask again
  stepwell bench streams --users 1000 --scenario beat --beat 0.1 --floor
  stepwell bench streams --users 10000 --scenario burst --json

--json prints one object a line.  Times end in _us or _ns_per_page, speeds in _per_s, memory in _mb (the most so far);
a line "machine" says how fast plain Python runs, to compare figures of different machines by;
"build" is "pure" or "compiled".  Rows of an engine have latencies in _ms, and "loop_ns", the yardstick at their
time; exit status 1 if an answer had not as many tokens as were asked for.
"""

_TRACES = Path("../shared/traces")


def arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="what", required=True, metavar="scheduler|memory|sim|engine|streams")
    scheduler = commands.add_parser("scheduler", help="microseconds of a step, by requests running and waiting")
    scheduler.add_argument(
        "--steps", type=_positive, default=STEPS, metavar="N", help=f"timed steps a figure ({STEPS})"
    )
    scheduler.add_argument(
        "--requests", type=_several, default=REQUESTS, metavar="N", help=f"simulated for the speed ({REQUESTS})"
    )
    scheduler.add_argument("--allocator", default="paged", metavar="NAME", help="page allocator (paged)")
    scheduler.add_argument("--shadow", default="", metavar="NAME", help="a second policy, asked beside it (none)")
    sim = commands.add_parser("sim", help="requests simulated a second, journal on and off")
    sim.add_argument("--requests", type=_positive, default=100_000, metavar="N", help="of the common workload (100000)")
    sim.add_argument("--repeats", type=_positive, default=REPEATS, metavar="N", help=f"runs a figure ({REPEATS})")
    sim.add_argument("--traces", type=Path, default=_TRACES, metavar="DIR", help=f"where traces lie ({_TRACES})")
    memory = commands.add_parser("memory", help="nanoseconds of a page, of a prefix lookup, and of a step; waste")
    bench_memory.arguments(memory)
    engine = commands.add_parser("engine", help="tokens a second and latencies of a server under load, over HTTP")
    bench_engine.arguments(engine)
    streams = commands.add_parser(
        "streams", help="latencies, lost tokens, memory of a server with thousands of streams"
    )
    bench_streams.arguments(streams)
    for command in (scheduler, sim):
        every = "; all: one after another" if command is scheduler else ""
        command.add_argument("--policy", default="fcfs", metavar="NAME", help=f"scheduling policy (fcfs){every}")
        command.add_argument("--json", action="store_true", help="one JSON object a line")


def run(args: argparse.Namespace) -> int:
    if args.what == "engine":
        return bench_engine.run(args)
    if args.what == "streams":
        return bench_streams.run(args)
    if args.what == "memory":
        return bench_memory.run(args)
    lines: Iterator[Line]
    if args.what == "scheduler":
        chosen = names("policies") if args.policy == "all" else [args.policy]
        for name in chosen:
            load("policies", name)
        load("allocators", args.allocator)
        lines = bench_scheduler(
            chosen, steps=args.steps, allocator=args.allocator, requests=args.requests, shadow=args.shadow
        )
    else:
        load("policies", args.policy)
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
    if "growth" in line:
        return (
            f"{line['policy']}: a step with changes takes {line['growth']} times as long with {line['growth_to']:,}"
            f" waiting as with {line['growth_from']:,}; {line['requests_per_s']:,} requests/s are simulated"
        )
    steady = "no step did nothing but decode"
    if "steady_p50_us" in line:
        steady = f"a steady decode step takes {line['steady_p50_us']} µs (p99 {line['steady_p99_us']})"
    who = f"{line['policy']} with {line['shadow']} beside it" if "shadow" in line else f"{line['policy']}"
    at = f"{who}, {line['running']} running, {line['waiting']:,} waiting"
    if "change_p50_us" in line:
        change = f"{line['change_p50_us']} µs (p99 {line['change_p99_us']})"
        return f"{at}: {steady}, one with an arrival, an end and an admission {change}"
    return f"{at}: {steady}, {line['steady_asked_p50_us']} µs when the policy is asked every time"


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {value}")
    return value


def _several(text: str) -> int:
    value = int(text)
    if value < 2:
        raise argparse.ArgumentTypeError(f"must be at least 2, not {value}")
    return value
