"""``stepwell sim``: a scenario under one policy or several."""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

import stepwell
from stepwell.cli.logs import log
from stepwell.cli.outputs import check_folder
from stepwell.cli.progress import Bar
from stepwell.core.config_load import Resolved
from stepwell.core.errors import UserError
from stepwell.sim.metrics import RequestRecord
from stepwell.sim.run import Result, simulate
from stepwell.sim.scenario import load_workload, read_scenario, seed_overrides
from stepwell.sim.workload.request import Workload

HELP = "Simulate a workload on a virtual clock with the production scheduler."

EXAMPLES = """\
examples:
  stepwell sim                                        the built-in workload, first come first served
  stepwell sim scenario.toml --policy fcfs --policy chat-batch
  stepwell sim --trace AzureLLMInferenceTrace_conv.csv --rate 8 --limit 5000
  stepwell sim --trace conversation.jsonl --set workload.debucket=true
  stepwell sim --set memory.pages=3000 --set classes.chat.ttft_ms=500
  stepwell sim --set workload.kind=common --set workload.settings.count=100000 --journal run.jsonl
  stepwell sim --policy fcfs --shadow chat-batch      what would chat-batch have done in fcfs's place, step by step?
  stepwell sim --policy my_policy.py:Mine --json      one JSON object a policy, a line each

Values of a scenario file are those of `stepwell config show`.  With several policies every one gets the same
requests, and --journal run.jsonl becomes run.fcfs.jsonl and so on.
"""

_HEAD_LINES = 12


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("scenario", nargs="?", metavar="SCENARIO.toml", help="configuration (default: every default)")
    parser.add_argument(
        "--trace", metavar="FILE", help="requests from a trace or a journal (stepwell workload formats)"
    )
    parser.add_argument(
        "--skip-bad", action="store_true", help="count its rows that cannot be read instead of stopping"
    )
    parser.add_argument("--policy", action="append", default=[], metavar="NAME", help="repeat it to compare policies")
    parser.add_argument("--shadow", metavar="NAME", help="a second policy, asked beside it and never obeyed")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N requests (0: all)")
    parser.add_argument(
        "--rate", type=float, metavar="X", help="scale arrivals by the clock to X requests a second (0: as recorded)"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="of the scheduler and of generated workloads")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="any value, as scheduler.depth=2"
    )
    parser.add_argument("--journal", type=Path, metavar="FILE", help="record every decision")
    parser.add_argument("--json", action="store_true", help="the summary as JSON, one line a policy")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write one row a request")


def run(args: argparse.Namespace) -> int:
    for field in ("journal", "csv"):
        if (path := getattr(args, field)) is not None:
            check_folder(path, field=field)
    scenarios = _scenarios(args)
    workload = load_workload(scenarios[0])
    log("info", "workload ready", name=workload.name, requests=len(workload))
    results: list[Result] = []
    for resolved in scenarios:
        for note in resolved.notes:
            log("warning", note)
        policy = resolved.config.scheduler.policy
        with Bar(f"simulating {policy}", len(workload)) as bar:
            path = _journal(args.journal, policy, len(scenarios)) if args.journal else None
            result = simulate(resolved, workload=workload, journal=path, progress=bar)
        if result.lost_turns:
            log("warning", "the journal's disk was full", lost_turns=result.lost_turns, journal=str(path))
        log("info", "run done", policy=policy, cpu_s=round(result.cpu_s, 3), steps=result.summary.steps)
        results.append(result)
    if args.csv:
        write_csv(args.csv, results)
    if args.json:
        for result in results:
            print(as_json(result))
    else:
        print_results(results, workload)
    return 0


def _scenarios(args: argparse.Namespace) -> list[Resolved]:
    """One configuration a policy, equal in everything else."""
    overrides = []
    if args.trace is not None:
        overrides += ["workload.kind=trace", f"workload.trace={args.trace}"]
    if args.skip_bad:
        overrides.append("workload.skip_bad=true")
    if args.limit is not None:
        overrides.append(f"workload.limit={args.limit}")
    if args.rate is not None:
        overrides.append(f"workload.rate={args.rate}")
    if args.shadow is not None:
        overrides.append(f"scheduler.shadow={args.shadow}")
    if args.policy and any(each.partition("=")[0].strip() == "scheduler.policy" for each in args.set):
        raise UserError("give the policy by --policy or by --set, not by both", field="scheduler.policy")
    overrides += args.set
    if args.seed is not None:
        config = read_scenario(args.scenario, overrides=overrides, environ=os.environ).config
        overrides += seed_overrides(args.seed, config.workload)
    chosen: Sequence[list[str]] = [[f"scheduler.policy={name}"] for name in dict.fromkeys(args.policy)] or [[]]
    return [read_scenario(args.scenario, overrides=[*policy, *overrides], environ=os.environ) for policy in chosen]


def _journal(path: Path, policy: str, policies: int) -> Path:
    if policies == 1:
        return path
    word = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in policy)
    return path.with_name(f"{path.stem}.{word}{path.suffix}")


def as_json(result: Result) -> str:
    """What ``--json`` prints of a run: nothing in it depends on the machine or the day."""
    config = result.config
    told = {
        "stepwell": stepwell.__version__,
        "policy": config.scheduler.policy,
        "options": config.scheduler.options,
        "seed": config.scheduler.seed,
        "config_digest": config.digest,
        "workload": {
            "name": result.workload.name,
            "requests": len(result.workload),
            "notes": result.workload.describe(),
        },
        "summary": result.summary,
    }
    if result.shadow is not None:
        told["shadow"] = result.shadow
    return msgspec.json.encode(told).decode()


def print_results(results: Sequence[Result], workload: Workload) -> None:
    """The head of the report, and the table."""
    from stepwell.cli.shadow_tables import print_shadow  # lazy: --json needs no tables
    from stepwell.cli.tables import console, print_runs  # lazy: the same

    to = console()
    lines = results[0].workload.describe()
    if len(results) > 1:
        lines += [note for result in results[1:] for note in result.workload.notes if note not in lines]
    for line in lines[:_HEAD_LINES]:
        to.print(line)
    if len(lines) > _HEAD_LINES:
        to.print(f"and {len(lines) - _HEAD_LINES} more lines of this kind; --json has all of them")
    config = results[0].config
    to.print(
        f"{config.memory.pages} pages of {config.memory.page_size} tokens ({config.memory.allocator}),"
        f" a step of at most {config.scheduler.token_budget} tokens and {config.scheduler.running_limit} requests,"
        f" {config.cost.model} cost model, seed {config.scheduler.seed}"
    )
    to.print()
    print_runs([result.summary for result in results], to)
    for result in results:
        if result.shadow is not None:
            print_shadow(result.config.scheduler.policy, result.shadow, to)


def write_csv(path: Path, results: Sequence[Result]) -> None:
    """One row a request and policy; times in ns, 0 where it did not happen.

    ``place`` is the request's in the workload, the same for every policy; ids count arrivals.
    """
    fields = list(RequestRecord.__struct_fields__)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["policy", *fields, "place"])
        for result in results:
            policy = result.config.scheduler.policy
            writer.writerows(
                [policy, *(getattr(record, field) for field in fields), result.places[record.id - 1]]
                for record in result.metrics.requests.values()
            )
