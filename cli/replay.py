"""``stepwell replay``: does the scheduler still decide what a journal says, and how long do its plans take?"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from stepwell.cli.progress import Bar
from stepwell.cli.step_tables import print_times
from stepwell.cli.what_if import CHANGES, MODEL_CHOICES, ask
from stepwell.core.build import COSTMODEL, ECHO, make_backend
from stepwell.core.config import Config
from stepwell.core.errors import UserError
from stepwell.core.registry import make, make_cost_model, names
from stepwell.sim.execute import execute
from stepwell.sim.journal_read import config_of, stretches
from stepwell.sim.replay import replay
from stepwell.sim.wording import many

HELP = """\
Decide a recorded run again from its events, and hold every instruction to the record.
Exit status 0 if every decision is the recorded one, 1 if not.
With --backend nothing is decided: the recorded plans are executed on a real model instead, and the time that steps
took is told beside what the journal's cost model predicts, by the shape of the batch.
With --policy, --allocator or --set the recorded requests are served again in the simulator, by the recorded policy and
by the other one, and the difference is told: see docs/what_if.md."""

EXAMPLES = """\
examples:
  stepwell sim --journal run.jsonl && stepwell replay run.jsonl
  stepwell replay night.jsonl --plugins /etc/stepwell   policy files that the configuration names lie there
  stepwell replay run.jsonl --backend torch --dtype bfloat16 --limit 500
  stepwell replay night.jsonl --policy chat-batch       what if that had decided last night?
  stepwell replay night.jsonl --policy sarathi --set scheduler.options.step_ms=30 --set classes.chat.ttft_ms=500
"""

MODEL = "smollm2"
BYTES = 256
"""The vocabulary of ``echo``."""

_BACKENDS_ONLY = ("model", "dtype", "threads", "limit")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE", help="journal (its first segment)")
    parser.add_argument("--plugins", type=Path, metavar="DIR", help="folder that plugin files are looked for in")
    parser.add_argument("--backend", metavar="NAME", help="execute the plans on this backend: torch, echo, costmodel")
    parser.add_argument("--model", metavar="MODEL", help=f"what the backend loads ({MODEL})")
    parser.add_argument("--dtype", metavar="DTYPE", help="float32 or bfloat16 (auto)")
    parser.add_argument("--threads", type=int, metavar="N", help="of the processor (all cores but one)")
    parser.add_argument("--limit", type=int, metavar="STEPS", help="execute so many steps at most (all)")
    parser.add_argument("--policy", metavar="NAME", help="serve it again under this policy, and compare")
    parser.add_argument("--allocator", metavar="NAME", help="the same with another allocator of KV pages")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="the same with any value, as memory.pages=4000"
    )
    parser.add_argument("--fit", choices=MODEL_CHOICES, help="with these: what predicts steps that were not measured")
    parser.add_argument("--json", action="store_true", help="times or differences as JSON")


def run(args: argparse.Namespace) -> int:
    changes = [name for name in CHANGES if getattr(args, name)]
    if changes and args.backend is not None:
        raise UserError(f"goes without --backend: with --{changes[0]} nothing is executed", field=changes[0])
    if changes:
        _alone(args, _BACKENDS_ONLY, "goes with --backend")
        return ask(args)
    if args.fit is not None:
        raise UserError("goes with --policy, --allocator or --set: nothing is predicted without", field="fit")
    if args.backend is not None:
        return _execute(args)
    _alone(args, _BACKENDS_ONLY, "goes with --backend: without one nothing is executed")
    if args.json:
        raise UserError("--json goes with --backend, or with another policy", field="json")
    return _decide(args)


def _alone(args: argparse.Namespace, names: Sequence[str], why: str) -> None:
    given = next((name for name in names if getattr(args, name) is not None), "")
    if given:
        raise UserError(f"--{given} {why}", field=given)


def _decide(args: argparse.Namespace) -> int:
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


# ------------------------------------------------------------------------------------------------ execution


def _execute(args: argparse.Namespace) -> int:
    limit = args.limit or 0
    if limit < 0:
        raise UserError(f"must not be negative, got {limit}", field="limit")
    config = config_of(stretches(args.file)[0].header, str(args.file))
    cost = make_cost_model(config.cost, base=args.plugins)
    backend, vocabulary = _backend(args, config)
    try:
        with Bar(f"executing on {args.backend}", limit) as bar:
            times = execute(args.file, backend, cost, vocabulary=vocabulary, limit=limit, progress=bar)
    finally:
        backend.close()
    rows, total = times.by_shape(), times.total()
    if args.json:
        for row in (*rows, total):
            print(msgspec.json.encode(row).decode())
    else:
        print_times(rows, total)
    return 0


def _backend(args: argparse.Namespace, config: Config) -> tuple[Any, int]:
    """It with the journal's pool, and the size of its vocabulary.  Raises ``UserError`` if that does not fit."""
    if args.backend not in names("backends"):
        raise UserError(f"no backend {args.backend!r}; there are {', '.join(names('backends'))}", field="backend")
    if args.backend == ECHO:
        return make("backends", ECHO, cost=make_cost_model(config.cost, base=args.plugins)), BYTES
    if args.backend == COSTMODEL:
        rehearsal = make("backends", COSTMODEL, cost=make_cost_model(config.cost, base=args.plugins))
        return rehearsal, rehearsal.info.vocab_size
    options = {"path": args.model or MODEL, "dtype": args.dtype or "auto", "threads": args.threads or 0}
    backend = make_backend(args.backend, options, config)
    return backend, backend.info.vocab_size
