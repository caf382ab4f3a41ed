"""``stepwell fidelity``: the real engine against its prediction, policy by policy and load by load."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import msgspec

from stepwell.core.errors import UserError
from stepwell.sim.calibration.fits import FITS
from stepwell.sim.fidelity.markdown import markdown
from stepwell.sim.fidelity.runs import Runs, report, write_runs
from stepwell.sim.fidelity.study import LOADS, POLICIES, Study, check
from stepwell.sim.wording import many

HELP = """\
Run the production engine on a real model, calibrate on one half of the requests, predict the other half free-running
in the simulator, and report how well that went: decisions, latencies beside the spread of two real runs, the order of
policies.  Every live run that is finished stays in the folder, so an interrupted study goes on where it was."""

EXAMPLES = """\
examples:
  stepwell fidelity --out fidelity/                         a small model; about half an hour on two idle cores
  stepwell fidelity --out fidelity/ --minutes 9             as much of it as fits, then the same command again
  stepwell fidelity --out quick/ --policies fcfs,swap --loads 0.9,1.3 --requests 24
  stepwell fidelity --out big/ --model ./Llama-3.2-1B --set memory.pages=512

Leave the machine alone meanwhile: what else runs shows as the spread between two runs, and in the fit.
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    study = Study()
    parser.add_argument("--model", default=study.model, metavar="MODEL", help=f"as `stepwell serve` ({study.model})")
    parser.add_argument("--policies", default=",".join(POLICIES), metavar="A,B", help=f"({','.join(POLICIES)})")
    loads = ",".join(f"{each:g}" for each in LOADS)
    parser.add_argument("--loads", default=loads, metavar="X,Y", help=f"in parts of the measured capacity ({loads})")
    parser.add_argument("--requests", type=int, default=study.requests, metavar="N", help=f"a run ({study.requests})")
    parser.add_argument("--runs", type=int, default=study.runs, metavar="N", help=f"of each cell ({study.runs})")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of requests and scheduler (0)")
    parser.add_argument("--cost-model", choices=list(FITS), default="curve", help="what is fitted (curve)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any setting of the engine")
    parser.add_argument("--out", type=Path, default=Path("fidelity"), metavar="DIR", help="folder (fidelity)")
    parser.add_argument("--minutes", type=float, metavar="M", help="begin no live run after so long")


def run(args: argparse.Namespace) -> int:
    study = study_of(args)
    check(study)
    runs = Runs(study, args.out, _tell)
    missing = len(runs.missing())
    _tell(f"{many(len(runs.cells), 'live run')}, {missing} to be made, in {args.out}")
    until_s = time.monotonic() + 60 * args.minutes if args.minutes is not None else float("inf")
    if not runs.carry_out(until_s):
        print(f"{many(len(runs.missing()), 'live run')} left; the same command goes on with them")
        return 1
    found = report(runs, cost_model=args.cost_model, tell=_tell)
    text = markdown(found)
    (args.out / "report.md").write_text(text, encoding="utf-8")
    (args.out / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    write_runs(runs, args.out / "runs.jsonl")
    print(text)
    print(f"written to {args.out}: report.md, report.json, runs.jsonl; journals in {args.out / 'journals'}")
    return 1 if found.different else 0


def study_of(args: argparse.Namespace) -> Study:
    """Raises ``UserError`` for loads that are no numbers."""
    try:
        loads = tuple(float(each) for each in args.loads.split(","))
    except ValueError:
        raise UserError(f"must be numbers with commas between them, not {args.loads!r}", field="loads") from None
    return Study(
        model=args.model,
        policies=tuple(each.strip() for each in args.policies.split(",") if each.strip()),
        loads=loads,
        requests=args.requests,
        runs=args.runs,
        seed=args.seed,
        settings=tuple(args.set),
    )


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
