"""A live engine put together for tests, watched from all sides, with a backend that only repeats what it was told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import pytest

from stepwell.core.clock import RealClock, VirtualClock, run_virtual
from stepwell.core.engine import Engine
from stepwell.core.events import Event
from stepwell.core.instructions import Instruction, Launch
from stepwell.core.protocols import StepResult
from stepwell.core.sampling import GREEDY, SamplingParams
from stepwell.sim.backend import EchoBackend
from stepwell.sim.cost.linear import Linear
from stepwell.sim.metrics import RunMetrics
from stepwell.tests.core.shells import Case, Client, prompt_of

FAST = Linear.Options(base_ns=20_000, prefill_token_ns=0, decode_request_ns=0, kv_token_ps=0, swap_page_ns=0)
"""Steps of 20 µs: as fast as an event loop sleeps."""

ROOM = {"pages": 400, "page_size": 4, "host_pages": 100}


class Device(EchoBackend):
    """The echo backend, watched: who was let in and out, and whether it was closed."""

    live: set[int]
    closed = 0
    breaks_at = 0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.live = set()

    def admit(
        self,
        request: int,
        prompt: Sequence[int],
        max_tokens: int,
        sampling: SamplingParams = GREEDY,
        output: Sequence[int] = (),
    ) -> None:
        super().admit(request, prompt, max_tokens, sampling, output)
        self.live.add(request)

    def execute(self, batch: Launch) -> StepResult:
        if batch.step == self.breaks_at:
            raise RuntimeError("the driver is gone")
        return super().execute(batch)

    def release(self, request: int) -> None:
        super().release(request)
        self.live.remove(request)

    def close(self) -> None:
        self.closed += 1


@dataclass
class House:
    """An engine, its metrics, and what it decided.  ``lengths`` of answers; by default those of the prompts."""

    case: Case
    lengths: dict[int, int] | None = None
    virtual: bool = False
    decided: list[Instruction] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scheduler = self.case.build()
        self.metrics = RunMetrics()
        self.device = Device(cost=Linear(FAST), lengths=self.lengths, faults=self.case.fault_script())
        self.observers: list[Any] = [self.metrics.observe, self.note]
        self.clock = VirtualClock() if self.virtual else RealClock()

    def note(self, now_ns: int, events: Sequence[Event], out: Sequence[Instruction]) -> None:
        self.decided += out

    def serve(self, visit: Callable[[Engine], Awaitable[None]]) -> Engine:
        """Run the engine, and ``visit`` as its only client; closed after that."""

        async def main() -> Engine:
            engine = Engine(self.scheduler, self.device, self.clock, observers=self.observers)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(engine.run)
                await visit(engine)
                engine.close()
            assert len(asyncio.all_tasks()) == 1
            return engine

        engine = run_virtual(main) if self.virtual else anyio.run(main)
        assert self.device.closed == 1
        if not engine.failed:
            self.assert_idle()
        return engine

    def assert_idle(self) -> None:
        state = self.scheduler.state
        assert not state.requests
        assert not state.inflight
        assert not self.device.live
        usage = state.allocator.usage()
        assert (usage.free, usage.host_free) == (usage.total, usage.host_total)
        assert self.metrics._pages == 0


def house(depth: int = 1, *, memory: dict[str, Any] | None = None, **options: Any) -> House:
    chosen = {key: options.pop(key) for key in ("lengths", "virtual") if key in options}
    named = options.pop("policy", "fcfs"), options.pop("allocator", "paged")
    case = Case((), *named, faults=options.pop("faults", {}), memory=memory or ROOM)
    return House(replace(case, scheduler={"depth": depth, **options}), **chosen)


DEPTHS = pytest.mark.parametrize("depth", [1, 2, 3])


async def crowd(engine: Engine, count: int, prompt: int, max_tokens: int = 1000) -> list[Client]:
    """``count`` clients at once, read to their ends."""
    clients = [Client(engine.submit(prompt_of(id, prompt), max_tokens)) for id in range(1, count + 1)]
    async with anyio.create_task_group() as tasks:
        for client in clients:
            tasks.start_soon(client.read)
    return clients
