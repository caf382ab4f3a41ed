"""What a second step in flight brings: tokens a second at depth 1 and 2, and the share of time between steps.

    python -m stepwell.benchmarks.depth random-llama              a folder, a GGUF file, or smollm2

The engine with the model in its worker process, greedy requests that begin together; a new worker for each line, the
depths in turn.  One JSON object a line, medians over the rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from statistics import median

import anyio

from stepwell.core.build import build_scheduler
from stepwell.core.clock import RealClock
from stepwell.core.config import Config, MemoryConfig, ModelConfig, SchedulerConfig, validate
from stepwell.core.engine import Engine
from stepwell.core.events import Event, StepDone
from stepwell.core.instructions import Instruction
from stepwell.core.placement import Place
from stepwell.core.placement_open import make_place
from stepwell.core.sampling import SamplingParams
from stepwell.sim.bench import Line, as_json, machine

ENDLESS = SamplingParams(temperature=0.0, ignore_eos=True)
PROMPT_TOKENS = 16


class BusyTime:
    """Observes what steps took, in nanoseconds."""

    def __init__(self) -> None:
        self.ns = 0

    def __call__(self, now_ns: int, events: Sequence[Event], out: Sequence[Instruction]) -> None:
        self.ns += sum(each.elapsed_ns for each in events if isinstance(each, StepDone))


def config_of(model: str, depth: int, requests: int) -> Config:
    return validate(
        Config(
            model=ModelConfig(path=model, placement="process", threads=1),
            scheduler=SchedulerConfig(policy="fcfs", token_budget=512, running_limit=requests, depth=depth),
            memory=MemoryConfig(allocator="paged", pages=2048, page_size=16, host_pages=0),
        )
    )


async def rounds_of(config: Config, place: Place, requests: int, tokens: int, rounds: int) -> list[tuple[float, float]]:
    """Tokens a second and the share of time between steps, of each round."""
    busy, found = BusyTime(), []
    engine = Engine(build_scheduler(config), place, RealClock(), observers=[busy])
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        for _ in range(rounds):
            before_ns, start_ns = busy.ns, time.perf_counter_ns()
            streams = [
                engine.submit([5 + index] * PROMPT_TOKENS, tokens, sampling=ENDLESS) for index in range(requests)
            ]
            for stream in streams:
                await stream.wait()
            took_ns = time.perf_counter_ns() - start_ns
            assert all(len(stream.tokens) == tokens for stream in streams)
            found.append((requests * tokens * 1e9 / took_ns, 1 - (busy.ns - before_ns) / took_ns))
        tasks.cancel_scope.cancel()
    return found


def measure(model: str, depth: int, requests: int, tokens: int, rounds: int) -> Line:
    config = config_of(model, depth, requests)
    place = make_place(config)
    try:
        name = place.open().model
        found = anyio.run(rounds_of, config, place, requests, tokens, rounds)
    finally:
        place.close()
    rates, gaps = zip(*found, strict=True)
    return {
        "bench": "depth",
        "model": name,
        "depth": depth,
        "requests": requests,
        "tokens": tokens,
        "rounds": rounds,
        "tokens_per_s": round(median(rates), 1),
        "between_steps": round(median(gaps), 4),
        "loop_ns": machine()["loop_ns_per_iteration"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a folder, a GGUF file, or smollm2")
    parser.add_argument("--requests", type=int, default=8, metavar="N", help="at once (8)")
    parser.add_argument("--tokens", type=int, default=300, metavar="N", help="of each answer (300)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="a worker (5)")
    args = parser.parse_args()
    for depth in (1, 2, 1, 2):
        print(as_json(measure(args.model, depth, args.requests, args.tokens, args.rounds)), flush=True)


if __name__ == "__main__":
    main()
