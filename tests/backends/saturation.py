"""A crowd of requests in a pool far too small for it, whose answers must be those of each request alone."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import msgspec

from stepwell.backends.torch_backend import TorchBackend
from stepwell.core.build import build_scheduler
from stepwell.core.clock import VirtualClock, run_virtual
from stepwell.core.config import Config, SchedulerConfig, validate
from stepwell.core.engine import Engine
from stepwell.core.events import Event
from stepwell.core.instructions import Admitted, Instruction, Launch, Preempted
from stepwell.core.page_keys import page_keys
from stepwell.core.protocols import StepResult
from stepwell.core.sampling import SamplingParams, TokenLogprob
from stepwell.core.streams import Stream
from stepwell.tests.backends.driving import SALT, pool_of


class Asked(msgspec.Struct, frozen=True):
    """A request; ``leaves_at`` is after how many tokens, of everybody together, its client leaves (0: it stays).

    ``after``: it is another choice of the prompt of the request so many places before it (0: a first one).
    """

    prompt: list[int]
    max_tokens: int
    sampling: SamplingParams
    leaves_at: int = 0
    after: int = 0


class Said(msgspec.Struct):
    """What came of it, to the last bit."""

    tokens: list[int] = []
    logprobs: list[TokenLogprob] = []
    reason: str = ""


SAMPLINGS = (
    SamplingParams(temperature=0.0, logprobs=2),
    SamplingParams(temperature=1.3),
    SamplingParams(temperature=0.0, presence_penalty=0.7, repetition_penalty=1.1),
    SamplingParams(temperature=0.9, top_p=0.9, frequency_penalty=0.5, logprobs=0),
    SamplingParams(temperature=1.0, top_k=20, min_p=0.02, logprobs=3),
    SamplingParams(temperature=0.0, min_tokens=8),
)
"""Greedy and seeded, with and without log-probabilities."""


def crowd_of(
    count: int, vocabulary: int, *, prompts: tuple[int, int], answers: tuple[int, int], seed: int, choices: int = 1
) -> list[Asked]:
    """Requests drawn from a seed, ``choices`` of each prompt; a quarter of their clients leave at some moment."""
    dice = random.Random(seed)
    asked: list[Asked] = []
    for index in range(count):
        after = index % choices
        if after:
            prompt = asked[index - after].prompt
        else:
            prompt = [dice.randrange(vocabulary) for _ in range(dice.randint(*prompts))]
        sampling = msgspec.structs.replace(SAMPLINGS[index % len(SAMPLINGS)], seed=index)
        leaves_at = dice.randrange(1, count * answers[0] // 2) if dice.random() < 0.25 else 0
        asked.append(Asked(prompt, dice.randint(*answers), sampling, leaves_at, after))
    return asked


class _Noting:
    """The backend, with what it says of each request kept, log-probabilities too."""

    def __init__(self, backend: TorchBackend) -> None:
        self._backend = backend
        self.info = backend.info
        self.admit, self.release, self.close = backend.admit, backend.release, backend.close
        self.logprobs: dict[int, list[TokenLogprob]] = {}

    def execute(self, batch: Launch) -> StepResult:
        result = self._backend.execute(batch)
        assert not result.failed, result.failed
        for request, logprob in result.logprobs.items():
            self.logprobs.setdefault(request, []).append(logprob)
        return result


@dataclass
class House:
    """An engine on a backend, for one crowd after another.

    ``preemptions`` are counted by mode, ``left`` by the state in which a client left; ``fullest`` is the most pages
    that were in use at once, ``cached`` how many tokens were found computed, ``copied`` how many pages within the
    device were copied.
    """

    backend: TorchBackend
    policy: str = "fcfs"
    scheduler: dict[str, Any] = field(default_factory=dict)
    allocator: str = "paged"
    keeping: dict[str, Any] = field(default_factory=dict)
    fullest: int = 0
    preemptions: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    cached: int = 0
    copied: int = 0

    def serve(self, asked: Sequence[Asked]) -> list[Said]:
        """All at once; their tokens and how they ended.  The pool is as it was, afterwards."""
        info, noting = self.backend.info, _Noting(self.backend)
        memory = pool_of(info, self.allocator, self.keeping)
        config = validate(Config(scheduler=SchedulerConfig(policy=self.policy, **self.scheduler), memory=memory))
        streams: list[Stream] = []
        scheduler = build_scheduler(config)
        state = scheduler.state
        told = 0

        def observe(now_ns: int, events: Sequence[Event], out: Sequence[Instruction]) -> None:
            self.preemptions.update(each.mode for each in out if isinstance(each, Preempted))
            self.cached += sum(each.cached for each in out if isinstance(each, Admitted))
            self.copied += sum(len(each.copies) for each in out if isinstance(each, Launch))
            self.fullest = max(self.fullest, state.allocator.usage().used)

        async def main() -> None:
            engine = Engine(scheduler, noting, VirtualClock(), observers=[observe])

            async def read(stream: Stream) -> None:
                nonlocal told
                async for tokens in stream:
                    told += len(tokens)
                    for each, other in zip(asked, streams, strict=True):
                        request = state.requests.get(other.request)
                        if 0 < each.leaves_at <= told and request is not None and not other._cancelled:
                            self.left[request.state.value] += 1
                            other.cancel()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(engine.run)
                for each in asked:
                    kv = state.allocator
                    keys = page_keys(each.prompt, kv.key_tokens, SALT) if kv.reuses_prefixes else ()
                    parent = streams[-each.after].request if each.after else 0
                    streams.append(
                        engine.submit(
                            each.prompt,
                            each.max_tokens,
                            keys=keys,
                            salt=SALT,
                            sampling=each.sampling,
                            parent=parent,
                        )
                    )
                for stream in streams:
                    tasks.start_soon(read, stream)
                await engine.drained()
                engine.close()
            assert not engine.failed, engine.failed
            usage = state.allocator.usage()
            assert (usage.used, usage.host_free) == (0, usage.host_total)

        run_virtual(main)
        return [self._said(stream, noting.logprobs.get(stream.request, [])) for stream in streams]

    def _said(self, stream: Stream, logprobs: list[TokenLogprob]) -> Said:
        """A step that was in flight when a request ended has sampled for it once more; that does not count."""
        assert stream.finished is not None
        return Said(stream.tokens, logprobs[: len(stream.tokens)], stream.finished.reason)


def check_identity(asked: Sequence[Asked], crowds: Sequence[Sequence[Said]], alone: House) -> None:
    """Every answer of the crowds is that of its request alone, or, where the client left, how that begins."""
    for index, request in enumerate(asked):
        if all(crowd[index] == Said(reason="cancelled") for crowd in crowds):
            continue
        (own,) = alone.serve([msgspec.structs.replace(request, leaves_at=0, after=0)])
        assert len(own.logprobs) == (len(own.tokens) if request.sampling.logprobs >= 0 else 0), index
        for crowd in crowds:
            said, right = crowd[index], own
            if said.reason == "cancelled":
                assert request.leaves_at
                count = len(said.tokens)
                right = Said(own.tokens[:count], own.logprobs[:count], "cancelled")
            assert said == right, (index, request)
    assert not alone.preemptions


def pages_of(asked: Sequence[Asked], count: int, page_size: int) -> int:
    """A pool that holds the ``count`` longest of them, whole."""
    return sum(sorted(-(-(len(each.prompt) + each.max_tokens) // page_size) for each in asked)[-count:])
