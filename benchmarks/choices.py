"""What several choices of a prompt cost: handed in one by one, or each with the first as its parent.

    python -m stepwell.benchmarks.choices          8 choices of 512 tokens of prompt on SmolLM2, 16 tokens each

Prints a line of JSON a case, medians over the rounds, which take turns: the tokens of prompt that were computed, the
time to the first token of the first choice and of all, and the time to the end of all.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from statistics import median

import anyio
import msgspec

from stepwell.core.build import build_scheduler, make_backend
from stepwell.core.build_kind import build_kind
from stepwell.core.clock import RealClock
from stepwell.core.config import Config, MemoryConfig, SchedulerConfig, validate
from stepwell.core.engine import Engine
from stepwell.core.events import Event
from stepwell.core.instructions import Instruction, Launch
from stepwell.core.page_keys import page_keys
from stepwell.core.placement import Threaded
from stepwell.core.protocols import Backend
from stepwell.core.registry import complete
from stepwell.core.sampling import SamplingParams
from stepwell.core.streams import Stream
from stepwell.sim.bench import Line, machine

ALLOCATORS = ("paged", "prefix")
VOCABULARY = 49_152


class Run(msgspec.Struct):
    """One round: what was computed of prompts, pages at the most, and times since the choices were handed in, in ms."""

    prefill_tokens: int = 0
    pages: int = 0
    first_ms: float = 0.0
    all_first_ms: float = 0.0
    end_ms: float = 0.0


def config_of(allocator: str) -> Config:
    memory = MemoryConfig(allocator=allocator, pages=1024, page_size=16, host_pages=0)
    return complete(validate(Config(scheduler=SchedulerConfig(token_budget=2048), memory=memory)))


def measure(backend: Backend, allocator: str, prompt: list[int], choices: int, tokens: int, *, forks: bool) -> Run:
    """One prompt, in an engine of its own: nothing of it is known before."""
    run = Run()
    scheduler = build_scheduler(config_of(allocator))
    kv = scheduler.state.allocator

    def observe(now_ns: int, events: Sequence[Event], out: Sequence[Instruction]) -> None:
        run.pages = max(run.pages, kv.usage().used)
        for each in out:
            if isinstance(each, Launch):
                run.prefill_tokens += sum(count for _, _, count, _ in each.slices)

    async def main() -> None:
        engine = Engine(scheduler, Threaded(backend), RealClock(), observers=[observe])
        keys = page_keys(prompt, kv.key_tokens, b"") if kv.reuses_prefixes else []
        firsts: dict[int, float] = {}

        async def read(stream: Stream) -> None:
            async for _ in stream:
                firsts.setdefault(stream.request, time.perf_counter())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.run)
            await anyio.sleep(0.05)
            start = time.perf_counter()
            parent = 0
            for seed in range(choices):
                sampling = SamplingParams(temperature=1.0, seed=seed, ignore_eos=True)
                stream = engine.submit(prompt, tokens, keys=keys, sampling=sampling, parent=parent)
                parent = parent or (stream.request if forks else 0)
                tasks.start_soon(read, stream)
            await engine.drained()
            end = time.perf_counter()
            engine.close()
        assert not engine.failed, engine.failed
        run.first_ms, run.all_first_ms = 1e3 * (min(firsts.values()) - start), 1e3 * (max(firsts.values()) - start)
        run.end_ms = 1e3 * (end - start)

    anyio.run(main)
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--choices", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=16)
    args = parser.parse_args()
    print(msgspec.json.encode(machine()).decode())
    draw = random.Random(1)
    backend = make_backend("torch", {}, config_of("paged"))
    cases = [(allocator, forks) for allocator in ALLOCATORS for forks in (False, True)]
    runs: dict[tuple[str, bool], list[Run]] = {case: [] for case in cases}
    for _ in range(args.rounds + 1):
        prompt = draw.choices(range(VOCABULARY), k=args.prompt)
        for allocator, forks in cases:
            runs[allocator, forks].append(measure(backend, allocator, prompt, args.choices, args.tokens, forks=forks))
    for (allocator, forks), rounds in runs.items():
        line: Line = {
            "bench": "choices",
            "build": build_kind(),
            "allocator": allocator,
            "handed_in": "with a parent" if forks else "one by one",
            "choices": args.choices,
            "prompt_tokens": args.prompt,
            "rounds": args.rounds,
        }
        for name in Run.__struct_fields__:
            line[name] = round(median([getattr(each, name) for each in rounds[1:]]), 1)
        print(msgspec.json.encode(line).decode(), flush=True)


if __name__ == "__main__":
    main()
