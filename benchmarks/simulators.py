"""Simulators side by side: Stepwell and sched-sim on the common workload, in turn; others quoted.

    python -m stepwell.benchmarks.simulators                   10,000 requests at load 0.9; installs sched-sim at first
    python -m stepwell.benchmarks.simulators --requests 2000
    python -m stepwell.benchmarks.simulators --skip-install    fails if it is not there

Both get the same requests, step time, page pool and token budget, and run on one core.  Speed is requests over the
processor time of the loop, without start-up and reading; the best and the median of ``--repeats`` runs, taken in turn.
sched-sim runs in an environment of its own under ``.cache/sched-sim``.  Prints a line of JSON a simulator; ``"quoted":
true`` is what others measured, elsewhere and under conditions of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from stepwell.core.build_kind import build_kind
from stepwell.core.types import NS_PER_S
from stepwell.sim.bench import machine, rss_mb, simulated_config
from stepwell.sim.run import simulate
from stepwell.sim.workload.generate import common_workload
from stepwell.sim.workload.request import Workload

PACKAGE = "sched-sim==0.2.1"
HERE = Path(__file__).resolve().parent
HOME = HERE.parent / ".cache" / "sched-sim"
PYTHON = HOME / "venv" / "bin" / "python"

_CONDITIONS = (
    "published probes of the same workload at 90 to 95 % of its own saturated rate, batch cap 128, one replica"
)
QUOTED: list[dict[str, Any]] = [
    {
        "simulator": "BLIS inference-sim",
        "language": "Go",
        "requests": 100_000,
        "requests_per_s": 3_010,
        "rss_mb": 1_900,
    },
    {"simulator": "Vidur", "requests": 10_000, "requests_per_s": 990, "rss_mb": 1_450},
    {"simulator": "Vidur, metrics off", "requests": 10_000, "requests_per_s": 1_405},
]


def install() -> None:
    """Make sched-sim's environment unless it is there."""
    if (HOME / "installed").exists():
        return
    HOME.mkdir(parents=True, exist_ok=True)
    for command in (
        [sys.executable, "-m", "venv", str(HOME / "venv")],
        [str(PYTHON), "-m", "pip", "install", "--quiet", PACKAGE],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(command)} failed: is the package index in reach?\n{done.stderr[-2000:]}")
    (HOME / "installed").write_text(PACKAGE + "\n")


def ours(workload: Workload) -> dict[str, Any]:
    """One run of Stepwell's."""
    result = simulate(simulated_config("fcfs", "paged"), workload=workload)
    told = result.summary
    return {
        "cpu_s": result.cpu_s,
        "steps": told.steps,
        "finished": told.all.completed,
        "ttft_mean_ms": told.all.ttft_ms.mean,
        "e2e_mean_ms": told.all.e2e_ms.mean,
        "rss_mb": rss_mb(),
    }


def theirs(requests: Path) -> dict[str, Any]:
    """One run of sched-sim's, in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(PYTHON), str(HERE / "simulators_real.py"), str(requests)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"sched-sim failed:\n{done.stderr[-4000:]}")
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def row(simulator: str, requests: int, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Speeds over all runs; the rest is of the last, and the same in all."""
    speeds = [requests / each["cpu_s"] for each in runs]
    last = runs[-1]
    return {
        "bench": "simulators",
        "simulator": simulator,
        "quoted": False,
        "requests": requests,
        "requests_per_s": round(median(speeds)),
        "requests_per_s_best": round(max(speeds)),
        "steps_per_s": round(median(speeds) * last["steps"] / requests),
        "steps": last["steps"],
        "finished": last["finished"],
        "ttft_mean_ms": round(last["ttft_mean_ms"], 2),
        "e2e_mean_ms": round(last["e2e_mean_ms"], 2),
        "rss_mb": round(max(each["rss_mb"] for each in runs), 1),
        "repeats": len(runs),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000, metavar="N")
    parser.add_argument("--load", type=float, default=0.9, metavar="SHARE", help="of what the machine can do (0.9)")
    parser.add_argument("--repeats", type=int, default=3, metavar="N")
    parser.add_argument("--skip-install", action="store_true")
    args = parser.parse_args()
    if not args.skip_install:
        install()
    elif not PYTHON.exists():
        sys.exit(f"{PACKAGE} is not in {HOME}: leave out --skip-install")
    workload = common_workload(args.requests, args.load)
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    print(
        json.dumps({**machine(), "package": PACKAGE, "cores": os.cpu_count(), "load": args.load, "at": at}), flush=True
    )
    mine: list[dict[str, Any]] = []
    other: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder, "requests.jsonl")
        given.write_text(
            "".join(
                json.dumps([each.arrival_ns / NS_PER_S, each.prompt_tokens, each.output_tokens]) + "\n"
                for each in workload.requests
            )
        )
        for _ in range(args.repeats):
            mine.append(ours(workload))
            other.append(theirs(given))
    print(json.dumps(row(f"Stepwell, {build_kind()}", args.requests, mine)))
    print(json.dumps(row(PACKAGE.replace("==", " "), args.requests, other)))
    for each in QUOTED:
        print(json.dumps({"bench": "simulators", "quoted": True, **each, "conditions": _CONDITIONS}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
