"""The same workload through both shells: the simulator, and the live engine in virtual time with clients of its own."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import msgspec

from stepwell.core.build import build_scheduler, make_shadow
from stepwell.core.clock import VirtualClock, run_virtual
from stepwell.core.config import Config, MemoryConfig, SchedulerConfig, validate
from stepwell.core.engine import Engine
from stepwell.core.errors import CapacityError
from stepwell.core.events import Event
from stepwell.core.instructions import Finished, Instruction, Rejected
from stepwell.core.journal import Header, encode_header
from stepwell.core.journal_encoder import JournalEncoder
from stepwell.core.registry import complete
from stepwell.core.scheduler import Scheduler
from stepwell.core.streams import Stream
from stepwell.sim.backend import EchoBackend, Fault, FaultScript, no_faults
from stepwell.sim.cost.linear import Linear
from stepwell.sim.cost.linear_options import LinearOptions
from stepwell.sim.loop import Simulator
from stepwell.sim.workload.request import TraceRequest

ODD = Linear.Options(
    base_ns=11, prefill_token_ns=3, prefill_request_ns=1, decode_request_ns=2, kv_token_ps=1333, swap_page_ns=5
)
"""Small odd coefficients: steps of some tens of nanoseconds, so that everything meets everything in time."""

OPTIONS: dict[str, dict[str, object]] = {
    "chat-batch": {"aging_s": 4e-7},
    "static": {"batch_size": 3},
    "sjf": {"aging_s": 4e-7, "predictor_options": {"window": 2, "first": 4}},
    "srpt": {"aging_s": 4e-7, "predictor_options": {"window": 2, "first": 4}},
    "mlfq": {"aging_s": 4e-7, "quantum": 2, "output_cost": 2},
    "plas": {"aging_s": 4e-7, "quantum": 8, "output_cost": 4},
}

LATE_NS = 1 << 45
"""Long after everything: ten hours."""


@dataclass(frozen=True)
class Case:
    """A workload and the house it comes to.  ``max_tokens`` and ``faults`` (by step) hold for all of it."""

    requests: tuple[TraceRequest, ...]
    policy: str = "fcfs"
    allocator: str = "paged"
    scheduler: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)
    max_tokens: int = 1000
    faults: dict[int, Fault] = field(default_factory=dict)
    cost: LinearOptions = ODD
    options: dict[str, object] = field(default_factory=dict)

    def config(self) -> Config:
        options = self.options or OPTIONS.get(self.policy, {})
        config = Config(
            scheduler=SchedulerConfig(policy=self.policy, options=options, **self.scheduler),
            memory=MemoryConfig(allocator=self.allocator, **self.memory),
        )
        return complete(validate(config))

    def fault_script(self) -> FaultScript:
        return self.faults.get if self.faults else no_faults

    def build(self, *, honour_repeats: bool = True) -> Scheduler:
        config = self.config()
        return build_scheduler(config, honour_repeats=honour_repeats, shadow=make_shadow(config))


def fixed_case(seed: int, policy: str, allocator: str) -> Case:
    """A crowded house drawn from a seed, the same on every machine: it swaps, recomputes, cancels and fails."""
    draw = random.Random(seed)
    page_size, longest, running = draw.randint(1, 5), draw.randint(8, 24), draw.randint(2, 5)
    one = -(-2 * longest // page_size)
    now_ns = 0
    requests: list[TraceRequest] = []
    for _ in range(14):
        now_ns += draw.choice((0, 0, 30, 200))
        requests.append(
            TraceRequest(
                now_ns,
                draw.randint(1, longest),
                draw.randint(1, longest),
                draw.choice(("chat", "batch")),
                draw.choice(("a", "b")),
                cancel_ns=now_ns + draw.randint(1, 900) if draw.random() < 0.2 else 0,
                priority=len(requests) % 3 - 1,
                program=("", "loop", "chat")[len(requests) % 5 % 3],
            )
        )
    return Case(
        tuple(requests),
        policy,
        allocator,
        scheduler={
            "token_budget": running + 9,
            "running_limit": running,
            "depth": 1 + seed % 3,
            "max_waiting": 9,
            "max_preemptions": 3,
        },
        memory={"page_size": page_size, "pages": one + one // 3, "host_pages": one},
        max_tokens=2 * longest,
        faults={step: Fault((2,), seed % 2 == 0) for step in draw.sample(range(2, 40), 2)} if seed % 4 == 0 else {},
    )


def header_of(config: Config, scheduler: Scheduler, **changes: Any) -> Header:
    header = Header(
        version="0",
        shell="test",
        digest=config.digest,
        policy=scheduler.policy_name,
        options=dict(scheduler.policy_options),
        seed=config.scheduler.seed,
        config=msgspec.to_builtins(config),
    )
    return msgspec.structs.replace(header, **changes)


@dataclass
class Run:
    """What came of it: the journal, and each request's end as (reason, tokens)."""

    journal: bytes
    ends: dict[int, tuple[str, int]]

    def write(self, path: Path) -> Path:
        path.write_bytes(self.journal)
        return path


class Recorder:
    """An observer that keeps a journal in memory, and every end."""

    def __init__(self, config: Config, scheduler: Scheduler) -> None:
        self.encoder = JournalEncoder()
        self.head = encode_header(header_of(config, scheduler))
        self.ends: dict[int, tuple[str, int]] = {}

    def __call__(self, now_ns: int, events: Sequence[Event], out: Sequence[Instruction]) -> None:
        self.encoder.turn(now_ns, events, out)
        for each in out:
            if isinstance(each, Finished):
                assert each.request not in self.ends
                self.ends[each.request] = (each.reason, each.tokens)
            elif isinstance(each, Rejected):
                assert each.request not in self.ends
                self.ends[each.request] = (each.code, 0)

    def run(self) -> Run:
        return Run(self.head + self.encoder.take(flush=True), self.ends)


def simulated(case: Case, *, jumps: bool = True, honour_repeats: bool = True) -> Run:
    scheduler = case.build(honour_repeats=honour_repeats)
    recorder = Recorder(case.config(), scheduler)
    Simulator(
        scheduler,
        Linear(case.cost),
        case.requests,
        observers=[recorder],
        max_tokens=case.max_tokens,
        faults=case.fault_script(),
        jumps=jumps,
    ).run()
    return recorder.run()


def prompt_of(id: int, tokens: int) -> list[int]:
    """Tokens that name their request and place, so that a mix-up shows."""
    return [1_000_000 + 1000 * id + place for place in range(tokens)]


def answer_of(id: int, prompt_tokens: int, tokens: int) -> list[int]:
    """What the echo backend says."""
    prompt = prompt_of(id, prompt_tokens)
    return [prompt[place % prompt_tokens] for place in range(tokens)]


@dataclass
class Client:
    """Reads its stream to the end; ``chunks`` are the lists of tokens as they came."""

    stream: Stream
    chunks: list[list[int]] = field(default_factory=list)
    refused: str = ""

    async def read(self) -> None:
        try:
            async for chunk in self.stream:
                self.chunks.append(chunk)
        except CapacityError as error:
            self.refused = error.code

    def end(self) -> tuple[str, int]:
        """After checking that what was sent is the answer, whole and once."""
        if self.refused:
            assert not self.chunks
            return self.refused, 0
        finished = self.stream.finished
        assert finished is not None
        got = [token for chunk in self.chunks for token in chunk]
        assert got == self.stream.tokens
        assert len(got) == finished.tokens
        return finished.reason, finished.tokens


Prepare = Callable[[Engine, VirtualClock], Any]


def live(case: Case, *, honour_repeats: bool = True, beside: Prepare | None = None) -> Run:
    """Through the engine; ``beside`` is an async function run in a task of its own, given the engine and the clock."""
    scheduler = case.build(honour_repeats=honour_repeats)
    recorder = Recorder(case.config(), scheduler)
    backend = EchoBackend(
        cost=Linear(case.cost),
        lengths={id: request.output_tokens for id, request in enumerate(case.requests, 1)},
        faults=case.fault_script(),
    )
    clients: dict[int, Client] = {}

    async def main() -> None:
        clock = VirtualClock()
        engine = Engine(scheduler, backend, clock, observers=[recorder])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.run)
            tasks.start_soon(_leave, case.requests, clients, clock)
            if beside is not None:
                tasks.start_soon(beside, engine, clock)
            for id, request in enumerate(case.requests, 1):
                await clock.sleep_until(request.arrival_ns)
                clients[id] = client = Client(_submit(engine, id, request, case.max_tokens))
                tasks.start_soon(client.read)
            await engine.drained()
            await clock.sleep_until(LATE_NS)
            engine.close()
        assert not engine.failed, engine.failed

    run_virtual(main)
    run = recorder.run()
    assert {id: client.end() for id, client in clients.items()} == run.ends
    for id, client in clients.items():
        assert client.stream.tokens == answer_of(id, case.requests[id - 1].prompt_tokens, len(client.stream.tokens))
    assert not scheduler.state.requests
    assert not scheduler.state.inflight
    return run


def _submit(engine: Engine, id: int, request: TraceRequest, max_tokens: int) -> Stream:
    stream = engine.submit(
        prompt_of(id, request.prompt_tokens),
        max_tokens,
        klass=request.klass,
        tenant=request.tenant,
        priority=request.priority,
        program=request.program,
        keys=request.keys,
    )
    assert stream.request == id
    return stream


async def _leave(requests: Sequence[TraceRequest], clients: dict[int, Client], clock: VirtualClock) -> None:
    for cancel_ns, id in sorted((each.cancel_ns, id) for id, each in enumerate(requests, 1) if each.cancel_ns):
        await clock.sleep_until(cancel_ns)
        clients[id].stream.cancel()
