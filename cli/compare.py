"""``stepwell compare``: policies × allocators × loads × seeds, and which differences are real."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stepwell.cli.logs import log
from stepwell.cli.progress import Bars
from stepwell.core.errors import UserError
from stepwell.sim import report
from stepwell.sim.compare.flat import TABLES, columns
from stepwell.sim.compare.result import Comparison, to_json
from stepwell.sim.compare.run import compare
from stepwell.sim.frames import HOW_TO_GET_IT, can_frame, write_csv, write_parquet

HELP = "Compare policies on the same requests, over allocators, loads and seeds, with 95 % intervals."

EXAMPLES = """\
examples:
  stepwell compare --policy fcfs --policy chat-batch --load 0.7 --load 0.9 --seeds 5
  stepwell compare scenario.toml --out results/       what is compared is in its table [compare]
  stepwell compare scenario.toml --slo-share 0.9      and the highest rate at which 90 % meet their objectives
  stepwell compare scenario.toml --scope chat --metric ttft_p99_ms --metric tpot_p99_ms
  stepwell compare scenario.toml --jobs 8 --json > comparison.json
  stepwell compare scenario.toml --on ray             on the Ray cluster that this machine belongs to

Every policy gets the same requests.  A load is a share of the saturated rate, which is measured first.  With --out,
finished runs are kept there, and the same command goes on where it was interrupted.  docs/compare.md has the rest.
"""

_COMPARED = {"scheduler.policy": "--policy", "memory.allocator": "--allocator", "workload.rate": "--rate"}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scenario", nargs="?", metavar="SCENARIO.toml", help="configuration (default: every default)")
    ask = parser.add_argument_group("what is compared (each replaces its value in the table [compare])")
    ask.add_argument("--policy", action="append", metavar="NAME", help="repeat it for each policy")
    ask.add_argument("--allocator", action="append", metavar="NAME", help="repeat it for each allocator")
    ask.add_argument("--load", action="append", type=float, metavar="X", help="share of the saturated rate; repeat it")
    ask.add_argument("--rate", action="append", type=float, metavar="X", help="arrivals a second; repeat it")
    ask.add_argument("--seeds", type=int, metavar="N", help="so many seeds, 1 to N (default: the scenario's own)")
    ask.add_argument("--baseline", metavar="LABEL", help="what differences are taken to (default: the first)")
    ask.add_argument(
        "--slo-share", type=float, metavar="X", help="find the highest rate with so high an SLO attainment"
    )
    ask.add_argument("--slo-scope", metavar="CLASS", help="whose attainment that is (all)")
    ask.add_argument("--trace", metavar="FILE", help="requests from a trace")
    ask.add_argument("--limit", type=int, metavar="N", help="only the first N requests (0: all)")
    ask.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any value, as memory.pages=3000")
    how = parser.add_argument_group("how")
    how.add_argument("--jobs", type=int, default=0, metavar="N", help="processes (0: one a core)")
    how.add_argument("--on", default="", metavar="ray[:ADDRESS]", help="run on a Ray cluster")
    show = parser.add_argument_group("what is shown and written")
    show.add_argument("--metric", action="append", metavar="NAME", help="a column of the tables; repeat it")
    show.add_argument("--scope", default="all", metavar="CLASS", help="requests of a class, or tenant:NAME (all)")
    show.add_argument("--json", action="store_true", help="the whole comparison as JSON instead of tables")
    show.add_argument("--csv", type=Path, metavar="FILE", help="means and intervals as CSV")
    show.add_argument("--parquet", type=Path, metavar="FILE", help="the same as Parquet (extra research)")
    show.add_argument("--out", type=Path, metavar="DIR", help="a folder for everything: JSON, CSV, Parquet, report")


def run(args: argparse.Namespace) -> int:
    _check(args)
    with Bars() as bars:
        found = compare(
            args.scenario,
            **_asked(args),
            overrides=_overrides(args),
            environ=os.environ,
            jobs=args.jobs,
            on=args.on,
            folder=args.out,
            progress=bars,
        )
    try:
        _show(args, found)  # first: what was waited for must not be lost to a file that cannot be written
    finally:  # nor the files to a scope that there is not
        _write(args, found)
    for failure in found.failures:
        told = f"{failure.contender}, {failure.point.label}, seed {failure.seed}: {failure.error}"
        print(f"stepwell: failed: {told}\n  repeat it with: {failure.command}", file=sys.stderr)
    return 1 if found.failures else 0


def _show(args: argparse.Namespace, found: Comparison) -> None:
    if args.json:
        sys.stdout.write(to_json(found).decode())
        return
    from stepwell.cli.compare_tables import print_comparison  # lazy: --json needs no tables

    print_comparison(found, scope=args.scope, metrics=args.metric or ())


def _check(args: argparse.Namespace) -> None:
    """Refuse before anything is run what could not be written afterwards."""
    if args.parquet is not None and not can_frame():
        raise UserError(HOW_TO_GET_IT, field="--parquet")
    for path in (args.csv, args.parquet):
        if path is not None:
            path.open("ab").close()


def _asked(args: argparse.Namespace) -> dict[str, Any]:
    given = {
        "policies": args.policy,
        "allocators": args.allocator,
        "loads": args.load,
        "rates": args.rate,
        "seeds": args.seeds,
        "baseline": args.baseline,
        "slo_share": args.slo_share,
        "slo_scope": args.slo_scope,
    }
    return {key: value for key, value in given.items() if value is not None}


def _overrides(args: argparse.Namespace) -> list[str]:
    for each in args.set:
        if each.partition("=")[0].strip() in ("scheduler.policy", "memory.allocator", "workload.rate"):
            raise UserError(
                "is what is compared: give it by --policy, --allocator or --rate", field=each.partition("=")[0]
            )
    overrides = [f"workload.limit={args.limit}"] if args.limit is not None else []
    if args.trace is not None:
        overrides += ["workload.kind=trace", f"workload.trace={args.trace}"]
    return [*overrides, *args.set]


def _write(args: argparse.Namespace, found: Comparison) -> None:
    rows = columns(found.axes, found, "rows")
    if args.csv is not None:
        write_csv(rows, args.csv)
    if args.parquet is not None:
        write_parquet(rows, args.parquet)
    if args.out is not None:
        for path in write_all(found, args.out):
            log("info", "written", path=str(path))
        print(f"the report is {(args.out / report.PAGE).resolve()}", file=sys.stderr)


def write_all(found: Comparison, folder: Path) -> Sequence[Path]:
    """Everything there is of a comparison, into a folder; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = folder / "comparison.json"
    whole.write_bytes(to_json(found))
    written = [whole]
    for name in TABLES:
        table = columns(found.axes, found, name)
        written.append(folder / f"{name}.csv")
        write_csv(table, written[-1])
        if can_frame():
            written.append(folder / f"{name}.parquet")
            write_parquet(table, written[-1])
    return [*written, report.write(found, folder)]
