"""``stepwell demo``: what scheduling changes, in under a minute."""

from __future__ import annotations

import argparse
from pathlib import Path

from stepwell.cli.outputs import check_folder
from stepwell.cli.progress import Bar
from stepwell.cli.sim import print_results
from stepwell.core.config import Config, MemoryConfig, SchedulerConfig, WorkloadConfig
from stepwell.core.config_load import Resolved
from stepwell.core.errors import UserError
from stepwell.sim.plot import HOW_TO_GET_IT, can_draw, draw
from stepwell.sim.run import Result, simulate
from stepwell.sim.scenario import load_workload
from stepwell.sim.series import Series

HELP = """\
Simulate the built-in workload (bursts of chat beside long batch requests, in too small a memory) under
four policies: the same requests, the same device, another scheduler.  Prints a table and writes a picture."""

EXAMPLES = """\
examples:
  stepwell demo
  stepwell demo --picture out/demo.svg
"""

SHOWN = ("chat-batch", "fcfs", "static", "swap")
"""As many as a table of 80 columns holds; `stepwell sim --policy` compares any."""

PICTURE = Path("stepwell-demo.png")
_CONTEXT, _PAGES = 4096, 3000


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--picture", type=Path, default=PICTURE, metavar="FILE", help=f"where to draw it ({PICTURE})")
    parser.add_argument("--limit", type=int, default=0, metavar="N", help="only the first N requests (0: all)")


def run(args: argparse.Namespace) -> int:
    if args.limit < 0:
        raise UserError(f"must be at least 0, not {args.limit}", field="--limit")
    check_folder(args.picture, field="--picture")
    workload = load_workload(Resolved(_config("fcfs", args.limit), {}))
    runs: list[tuple[Result, Series]] = []
    for policy in SHOWN:
        series = Series()
        with Bar(f"simulating {policy}", len(workload)) as bar:
            result = simulate(_config(policy, args.limit), workload=workload, observers=[series.observe], progress=bar)
        runs.append((result, series))
    print_results([result for result, _ in runs], workload)
    print()
    if not can_draw():
        print(f"No picture was drawn: {HOW_TO_GET_IT}")
        return 0
    draw(runs, args.picture, title=f"Stepwell: the same {len(workload)} requests under {len(runs)} policies")
    print(f"The picture is {args.picture.resolve()}")
    print("Next: stepwell sim --help, or write a policy of your own: docs/write_a_policy.md")
    return 0


def _config(policy: str, limit: int) -> Config:
    return Config(
        scheduler=SchedulerConfig(policy=policy, max_context=_CONTEXT),
        memory=MemoryConfig(pages=_PAGES),
        workload=WorkloadConfig(limit=limit),
    )
