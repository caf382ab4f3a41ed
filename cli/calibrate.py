"""``stepwell calibrate``: the cost model of a machine, from what steps of its live journals took."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from stepwell.cli.progress import Bar
from stepwell.cli.step_tables import print_times
from stepwell.cli.tables import console, plain_table
from stepwell.core.config import Config, CostConfig
from stepwell.core.config_load import section_toml
from stepwell.core.errors import UserError
from stepwell.sim.calibration.calibrate import Calibration, calibrate
from stepwell.sim.calibration.columns import TELLING
from stepwell.sim.calibration.fits import FITS
from stepwell.sim.calibration.measured import imaginary, measured_steps
from stepwell.sim.cost.reach import COUNTS
from stepwell.sim.step_reader import MeasuredStep
from stepwell.sim.wording import many

HELP = """\
Fit the simulator's cost model to the steps of live journals.
A step is measured from its launch to the next one, so the engine's own loop is in it; four fifths of the steps are
fitted, and the others say how far off the fit is."""

EXAMPLES = """\
examples:
  stepwell serve --model smollm2 --journal journals/       serve for a while, then
  stepwell calibrate journals/*.jsonl --out cost.toml
  stepwell sim cost.toml --policy fcfs --policy swap       the file is a configuration, or [cost] of one
  stepwell calibrate night.jsonl --model linear --json

Models: `curve` bends with the rows of a step and knows prefill attention; `table` bends with decoding requests and
prompt tokens apart; `linear` has one coefficient a count.
"""

MODEL = "curve"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("journals", nargs="+", type=Path, metavar="JOURNAL", help="of a live engine (first segments)")
    parser.add_argument("--model", choices=list(FITS), default=MODEL, help=f"what is fitted ({MODEL})")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="draws which steps are held out (0)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write [cost] as TOML, or with .json all of it")
    parser.add_argument(
        "--imaginary", action="store_true", help="take journals of the models costmodel and echo too (to try it out)"
    )
    parser.add_argument("--json", action="store_true", help="print all of it as JSON")


def run(args: argparse.Namespace) -> int:
    if args.out is not None and args.out.suffix not in (".toml", ".json"):
        raise UserError(f"is written as .toml or .json, not {args.out.name!r}", field="out")
    if args.seed < 0:
        raise UserError(f"must not be negative, got {args.seed}", field="seed")
    steps: list[MeasuredStep] = []
    for path in args.journals:
        if not args.imaginary and (why := imaginary(path)):
            raise UserError(f"{path}: {why}; nothing can be learnt of a machine. --imaginary takes it all the same")
        with Bar(f"reading {path.name}") as bar:
            steps += measured_steps(path, bar)
    found = calibrate(steps, model=args.model, seed=args.seed)
    for name in found.assumed:
        if count := found.evidence[name]:
            told = f"{many(count, 'fitted step')} had any, and {TELLING} are needed"
            print(f"warning: {name} keeps its default: {told}", file=sys.stderr)
    text = msgspec.json.encode(found).decode()
    if args.out is not None:
        write_cost(args.out, found)
    if args.json:
        print(text)
    else:
        print_calibration(found)
        if args.out is not None:
            print(f"written to {args.out}")
    return 0


def write_cost(path: Path, found: Calibration) -> None:
    """A configuration that says nothing but ``[cost]``, or everything as JSON."""
    if path.suffix == ".json":
        text = msgspec.json.format(msgspec.json.encode(found)).decode() + "\n"
    else:
        errors = found.errors
        text = (
            f"# fitted to {many(found.fitted, 'measured step')}; of {errors.steps} others nine in ten are within"
            f" {100 * errors.p90:.1f} %\n" + section_toml(Config(cost=found.cost), "cost")
        )
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}", field="out") from None


def print_calibration(found: Calibration) -> None:
    """Residuals by shape, coefficients, errors, and what the fit has seen."""
    print_times(found.shapes, found.total)
    to, errors = console(), found.errors
    to.print()
    to.print(f"cost model {found.cost.model}")
    table = plain_table("", "", "")
    for name, value in found.cost.options.items():
        if name == "reach":
            continue
        if isinstance(value, list):
            for count, time_ns in value:
                table.add_row(f"{name} {count}", f"{time_ns:,}", "")
        elif isinstance(value, dict):
            for row, line in zip(value["rows"], value["values"], strict=True):
                table.add_row(f"{name} {row}", f"{line[0]:,} to {line[-1]:,} ns", "")
        elif isinstance(value, int):
            table.add_row(name, f"{value:,}", _evidence(found, name))
    to.print(table)
    to.print()
    to.print(
        f"{found.fitted} steps fitted, {errors.steps} held out (seed {found.seed}): error of the held-out ones"
        f" mean {100 * errors.mean:.2f} %, p50 {100 * errors.p50:.2f} %, p90 {100 * errors.p90:.2f} %,"
        f" p99 {100 * errors.p99:.2f} %, of their sum {100 * errors.bias:+.2f} %",
        soft_wrap=True,
    )
    to.print(f"measured from least to most: {_reach(found.cost)}", soft_wrap=True)


def _evidence(found: Calibration, name: str) -> str:
    count = found.evidence.get(name)
    if count is None:
        return ""
    if name not in found.assumed:
        return f"from {many(count, 'step')}"
    return f"assumed: only {many(count, 'step')} had any" if count else "assumed: no step had any"


def _reach(cost: CostConfig) -> str:
    reach = cost.options["reach"]
    assert isinstance(reach, dict)
    return ", ".join(f"{name.replace('_', ' ')} {reach[name][0]}–{reach[name][1]}" for name in COUNTS)
