"""The production engine on one backend, requests handed in together, and how long its steps took."""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections.abc import Awaitable, Callable, Sequence

from stepwell.core.build import build_scheduler
from stepwell.core.clock import RealClock
from stepwell.core.config import Config
from stepwell.core.engine import Engine
from stepwell.core.errors import InvariantError
from stepwell.core.placement import Threaded
from stepwell.core.protocols import Backend
from stepwell.core.sampling import SamplingParams
from stepwell.sim.step_reader import MeasuredStep, StepReader

SAMPLING = SamplingParams(temperature=0.0, ignore_eos=True)


class Driver:
    """Hands requests to an engine.  ``played`` may be awaited again and again; the engine goes on."""

    def __init__(self, engine: Engine, steps: list[MeasuredStep], vocabulary: int) -> None:
        self._engine = engine
        self._draw = random.Random(0)
        self._vocabulary = vocabulary
        self._steps = steps

    def prompts(self, requests: int, length: int) -> list[list[int]]:
        ids = range(self._vocabulary)
        return [self._draw.choices(ids, k=length) for _ in range(requests)]

    async def played(self, prompts: Sequence[list[int]], tokens: int) -> float:
        """Seconds until every prompt has its answer of so many tokens."""
        self._steps.clear()
        start_ns = time.perf_counter_ns()
        for prompt in prompts:
            self._engine.submit(prompt, tokens, sampling=SAMPLING)
        await self._engine.drained()
        if self._engine.failed:
            raise InvariantError(f"the engine stopped: {self._engine.failed}")
        return (time.perf_counter_ns() - start_ns) / 1e9

    def decode_s(self, requests: int) -> list[float]:
        """Seconds of those steps lately played in which that many requests decoded and nothing else was done."""
        return [
            each.period_ns / 1e9
            for each in self._steps
            if each.shape.decode_requests == requests and not each.shape.prefill_tokens
        ]


def drive(config: Config, backend: Backend, work: Callable[[Driver], Awaitable[None]]) -> None:
    """Run ``work`` beside an engine under ``config`` (complete), whose steps are executed in a thread."""

    async def run() -> None:
        steps: list[MeasuredStep] = []
        reader = StepReader(steps.append)
        engine = Engine(build_scheduler(config), Threaded(backend), RealClock(), observers=[reader.observe])
        serving = asyncio.create_task(engine.run())
        try:
            await work(Driver(engine, steps, backend.info.vocab_size))
        finally:
            engine.close()
            await serving

    gc.collect()
    gc.disable()  # as `serve` does, more or less: a search for cycles in the middle of a step is nobody's step
    try:
        asyncio.run(run())
    finally:
        gc.enable()
