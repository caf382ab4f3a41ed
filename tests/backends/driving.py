"""A backend driven by hand, one request after another or together, and by the real engine over a real scheduler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import torch

from stepwell.backends.host import HostStepper
from stepwell.backends.runner import Runner, StepWork
from stepwell.backends.torch_backend import TorchBackend
from stepwell.core.build import build_scheduler
from stepwell.core.clock import VirtualClock, run_virtual
from stepwell.core.config import Config, MemoryConfig, SchedulerConfig, validate
from stepwell.core.engine import Engine
from stepwell.core.events import Event
from stepwell.core.instructions import Admitted, Instruction, Launch, Preempted
from stepwell.core.page_keys import page_keys
from stepwell.core.protocols import Backend, BackendInfo
from stepwell.core.sampling import GREEDY, SamplingParams, TokenLogprob
from stepwell.core.streams import Stream

SALT = b"of a tenant"


class Watched:
    """A runner whose scores are kept, by request and position of the token that they choose."""

    def __init__(self, inner: Runner, backend: TorchBackend) -> None:
        self.inner, self.backend = inner, backend
        self.logits: dict[tuple[int, int], torch.Tensor] = {}

    def run(self, work: StepWork) -> torch.Tensor:
        out = self.inner.run(work)
        group = self.backend.stepper.group.rows if len(work.tokens) else []
        named = [(row.id, len(row.tokens)) for row in group]
        named += [(each.row.id, each.start + each.count) for each in work.slices if each.samples]
        assert len(named) == len(out)
        for key, scores in zip(named, out, strict=True):
            self.logits.setdefault(key, scores.clone())
        return out


def make(path: Path, **sizes: Any) -> TorchBackend:
    """Float32 on one thread, deterministic unless said otherwise."""
    options: dict[str, Any] = {"path": str(path), "dtype": "float32", "threads": 1, "deterministic": True}
    options |= {name: sizes.pop(name) for name in list(sizes) if name in {*options, "memory_mib", "kernels"}}
    sizes = {"pages": 64, "page_size": 8, "token_budget": 64, "running_limit": 16} | sizes
    return TorchBackend(TorchBackend.Options(**options), **sizes)


def watch(backend: TorchBackend) -> Watched:
    assert isinstance(backend.stepper, HostStepper)
    watched = Watched(backend.stepper.runner, backend)
    backend.stepper.runner = watched
    return watched


@dataclass
class Hand:
    """Drives a backend without a scheduler; pages are handed out in an odd order."""

    backend: TorchBackend
    step: int = 0
    free: list[int] = field(default_factory=list)
    answers: dict[int, list[int]] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    known: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count = self.backend.info.pages
        self.free = sorted(range(count), key=lambda page: page * 37 % 101)

    def launch(self, **parts: Any) -> dict[int, int]:
        self.step += 1
        result = self.backend.execute(Launch(self.step, **parts))
        assert not result.failed, result.failed
        for request, token in result.tokens:
            self.answers.setdefault(request, []).append(token)
        return dict(result.tokens)

    def begin(self, request: int, prompt: Sequence[int], chunk: int, sampling: SamplingParams | None = None) -> None:
        """Prefill in slices of ``chunk``; every slice is a step of its own."""
        self.backend.admit(request, prompt, 100, sampling or GREEDY)
        self.prefill(request, len(prompt), chunk)

    def prefill(self, request: int, length: int, chunk: int) -> None:
        size = self.backend.info.page_size
        table = [self.free.pop() for _ in range(-(-length // size))]
        self.sizes[request], self.known[request] = len(table), length
        for start in range(0, length, chunk):
            count = min(chunk, length - start)
            tables = [(request, table)] if start == 0 else []
            made = self.launch(tables=tables, slices=[(request, start, count, start + count == length)])
            assert bool(made) == (start + count == length)

    def decode(self, steps: int, joined: Sequence[int] = ()) -> None:
        """The group, of those who joined so far."""
        for index in range(steps):
            growth: list[int] = []
            for row in [*self.backend.stepper.group.rows, *(self.backend._rows[id] for id in joined if not index)]:
                self.known[row.id] += 1
                if self.known[row.id] > self.sizes[row.id] * self.backend.info.page_size:
                    growth += (row.id, self.free.pop())
                    self.sizes[row.id] += 1
            self.launch(decode=True, growth=growth, joined=list(joined) if not index else [])


@dataclass
class Served:
    """What came of requests served by the engine."""

    answers: list[list[int]]
    reasons: list[str]
    preemptions: Counter[str]
    prompt_logprobs: list[list[TokenLogprob]]
    cached: list[list[int]]
    """Tokens that each found computed, at every admission."""


def pool_of(info: BackendInfo, allocator: str, options: Mapping[str, Any]) -> MemoryConfig:
    """What a backend has room for."""
    sizes = {name: getattr(info, name) for name in ("pages", "page_size", "host_pages")}
    return MemoryConfig(allocator=allocator, options=dict(options), **sizes)


def serve(
    backend: Backend,
    requests: Sequence[tuple[Sequence[int], int, SamplingParams]],
    *,
    policy: str = "swap",
    cancels: dict[int, int] | None = None,
    leaves: Collection[int] = (),
    at_once: bool = True,
    allocator: str = "paged",
    keeping: Mapping[str, Any] | None = None,
    **scheduler: Any,
) -> Served:
    """All at once or one after another; ``cancels`` says after how many tokens a client leaves,
    ``leaves`` who does when its second slice is launched.  ``keeping`` are the allocator's options."""
    info = backend.info
    memory = pool_of(info, allocator, keeping or {})
    settings = {"token_budget": 64, "running_limit": 16} | scheduler
    config = validate(Config(scheduler=SchedulerConfig(policy=policy, **settings), memory=memory))
    preemptions: Counter[str] = Counter()

    def observe(now_ns: int, events: Sequence[Event], out: Sequence[Instruction]) -> None:
        preemptions.update(each.mode for each in out if isinstance(each, Preempted))
        for each in out:
            if isinstance(each, Admitted):
                cached[each.request - 1].append(each.cached)
            if isinstance(each, Launch):
                for id, start, *_ in each.slices:
                    if id - 1 in leaves and start:
                        streams[id - 1].cancel()

    cached: list[list[int]] = [[] for _ in requests]
    streams: list[Stream] = []

    async def client(stream: Stream, leaves_after: int | None) -> None:
        async for _ in stream:
            if leaves_after is not None and len(stream.tokens) >= leaves_after:
                stream.cancel()

    async def main() -> None:
        made = build_scheduler(config)
        kv = made.state.allocator
        engine = Engine(made, backend, VirtualClock(), observers=[observe])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.run)
            for index, (prompt, most, sampling) in enumerate(requests):
                keys = page_keys(prompt, kv.key_tokens, SALT) if kv.reuses_prefixes else ()
                stream = engine.submit(prompt, most, keys=keys, salt=SALT, sampling=sampling)
                streams.append(stream)
                if at_once:
                    tasks.start_soon(client, stream, (cancels or {}).get(index))
                else:
                    await client(stream, None)
            await engine.drained()
            engine.close()
        assert not engine.failed, engine.failed
        usage = engine.scheduler.state.allocator.usage()
        assert usage.used == 0, usage

    run_virtual(main)
    ends = [stream.finished for stream in streams]
    return Served(
        [list(stream.tokens) for stream in streams],
        [end.reason if end else "" for end in ends],
        preemptions,
        [stream.prompt_logprobs for stream in streams],
        cached,
    )
