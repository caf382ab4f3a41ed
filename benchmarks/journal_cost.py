"""What a live journal costs: processor time of a step with and without, and a server's throughput side by side.

    python -m stepwell.benchmarks.journal_cost                    the engine on a backend that takes no time
    python -m stepwell.benchmarks.journal_cost --model smollm2    `stepwell bench engine`, alternating

The requests are those of the common engine workload.  One JSON object a line, medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import anyio
import msgspec

from stepwell.cli.journal_live import LiveJournal
from stepwell.cli.load_requests import lengths
from stepwell.core.build import build_scheduler
from stepwell.core.build_kind import build_kind
from stepwell.core.clock import RealClock
from stepwell.core.config import Config, JournalConfig, MemoryConfig, SchedulerConfig, validate
from stepwell.core.engine import Engine, TokenObserver
from stepwell.core.protocols import BatchShape
from stepwell.core.registry import complete
from stepwell.core.sampling import SamplingParams
from stepwell.sim.backend import EchoBackend
from stepwell.sim.bench import Line, machine

LEVELS = ("none", "decisions", "tokens")
ENDLESS = SamplingParams(temperature=0.0, ignore_eos=True)


class NoTime:
    """The cost model of a device that is always done already."""

    def step_ns(self, shape: BatchShape) -> int:
        return 0

    def run_ns(self, shape: BatchShape, start_ns: int, steps: int, until_ns: int) -> list[int]:
        raise NotImplementedError


def host(rounds: int, streams: int) -> list[Line]:
    """Processor time of a step of the engine, and time of its journal, by what is written."""
    took: dict[str, list[float]] = {level: [] for level in LEVELS}
    journal: dict[str, list[float]] = {level: [] for level in LEVELS}
    sizes: dict[str, float] = {}
    steps = 0
    for _ in range(rounds):
        for level in LEVELS:
            with tempfile.TemporaryDirectory(prefix="stepwell-bench-") as folder:
                spent_ns, journal_ns, steps = _run(level, Path(folder), streams)
                sizes[level] = sum(each.stat().st_size for each in Path(folder).iterdir()) / steps
            took[level].append(spent_ns / steps / 1000)
            journal[level].append(journal_ns / steps / 1000)
    return [
        {
            "bench": "journal",
            "build": build_kind(),
            "journal": level,
            "streams": streams,
            "steps": steps,
            "step_us": round(median(took[level]), 1),
            "journal_us": round(median(journal[level]), 1),
            "bytes_per_step": round(sizes[level]),
            "rounds": rounds,
            "loop_ns": machine()["loop_ns_per_iteration"],
        }
        for level in LEVELS
    ]


class _Timed:
    """Calls through, and adds up how long it takes."""

    def __init__(self) -> None:
        self.spent_ns = 0

    def of(self, call: Callable[..., None]) -> Callable[..., None]:
        def timed(*arguments: Any) -> None:
            start_ns = time.perf_counter_ns()
            call(*arguments)
            self.spent_ns += time.perf_counter_ns() - start_ns

        return timed


class _Tokens:
    """A token observer whose calls are timed."""

    def __init__(self, inner: TokenObserver, timed: _Timed) -> None:
        self.prompt = timed.of(inner.prompt)
        self.sampled = timed.of(inner.sampled)


def _run(level: str, folder: Path, streams: int) -> tuple[int, int, int]:
    """Processor time of it all and time of the journal in ns, and steps."""
    config = complete(
        validate(
            Config(
                scheduler=SchedulerConfig(token_budget=512),
                memory=MemoryConfig(pages=streams * 64, host_pages=0),
                journal=JournalConfig(level="tokens" if level == "tokens" else "decisions"),
            )
        )
    )
    scheduler = build_scheduler(config)
    journal = LiveJournal(folder, config, scheduler) if level != "none" else None
    if journal is not None:
        journal.start()
    timed = _Timed()
    engine = Engine(
        scheduler,
        EchoBackend(cost=NoTime()),
        RealClock(),
        observers=[timed.of(journal.observe)] if journal is not None else [],
        token_observer=_Tokens(journal.tokens, timed) if journal is not None and journal.tokens is not None else None,
    )

    async def main() -> int:
        async with anyio.create_task_group() as tasks:
            start_ns = time.process_time_ns()
            tasks.start_soon(engine.run)
            for prompt, tokens in lengths(streams):
                engine.submit([index % 256 for index in range(prompt)], tokens, sampling=ENDLESS)
            await engine.drained()
            spent_ns = time.process_time_ns() - start_ns
            engine.close()
        return spent_ns

    spent_ns = anyio.run(main)
    if journal is not None:
        journal.stop()
    return spent_ns, timed.spent_ns, scheduler.state.next_step - 1


def served(rounds: int, model: str, more: Sequence[str]) -> list[Line]:
    """Throughput at concurrency 64, without and with, one right after the other."""
    pairs: list[tuple[float, float]] = []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(prefix="stepwell-bench-") as folder:
            without = _served(model, more)
            pairs.append((without, _served(model, [*more, "--journal", folder])))
    ratios = [with_ / without for without, with_ in pairs]
    return [
        {
            "bench": "journal",
            "build": build_kind(),
            "model": model,
            "workload": "concurrency 64",
            "tokens_per_s_without": [pair[0] for pair in pairs],
            "tokens_per_s_with": [pair[1] for pair in pairs],
            "ratios": [round(ratio, 4) for ratio in ratios],
            "ratio_p50": round(median(ratios), 4),
        }
    ]


def _served(model: str, more: Sequence[str]) -> float:
    command = [sys.executable, "-m", "stepwell", "bench", "engine", "--workload", "concurrency-64", "--json"]
    done = subprocess.run([*command, "--model", model, *more], stdout=subprocess.PIPE, text=True, check=True)
    return float(json.loads(done.stdout.splitlines()[-1])["tokens_per_s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--model", help="measure a server of this model instead")
    args, more = parser.parse_known_args()
    print(msgspec.json.encode(machine()).decode())
    lines = served(args.rounds, args.model, more) if args.model else host(args.rounds, args.streams)
    for line in lines:
        print(msgspec.json.encode(line).decode(), flush=True)


if __name__ == "__main__":
    main()
