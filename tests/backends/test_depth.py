"""One step planned ahead, on a real model: the tokens of depth 1 wherever steps are executed, and journals that replay.

What is only known when a step is over (an end token, a stop string, a client that leaves) comes one step late: what was
computed beyond is nobody's.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import anyio
import msgspec
import pytest

pytest.importorskip("torch", reason="needs the extra `model`")

from stepwell.core.build import build_scheduler, journal_header
from stepwell.core.clock import RealClock
from stepwell.core.config import Config, MemoryConfig, ModelConfig, SchedulerConfig, validate
from stepwell.core.engine import Engine
from stepwell.core.events import Event
from stepwell.core.instructions import Instruction, Preempted
from stepwell.core.journal_file import JournalWriter
from stepwell.core.placement_open import make_place
from stepwell.core.registry import names
from stepwell.core.sampling import GREEDY, SamplingParams
from stepwell.core.snapshot import capture
from stepwell.core.streams import Stream
from stepwell.sim.replay import replay
from stepwell.tests.backends.driving import make, serve
from stepwell.tests.backends.tiny import SHAPE, write_gguf

LEAVES, STOPS = {2: 4, 5: 1}, {3: (6, 4), 7: (2, 2)}
"""Who leaves after how many tokens; whose stop string is found after how many, and how many are kept."""
SIZES = {"pages": 15, "page_size": 4, "host_pages": 12}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("tiny") / "model.gguf")


def asked() -> list[tuple[list[int], int, SamplingParams]]:
    """Ten, greedy and seeded; some have end tokens that come soon."""
    dice = random.Random(5)
    made = []
    for index in range(10):
        prompt = [dice.randrange(SHAPE.vocab_size) for _ in range(dice.randrange(1, 30))]
        ends = tuple(range(0, SHAPE.vocab_size, 7)) if index % 4 == 0 else ()
        seeded = SamplingParams(temperature=1.1, seed=index, stop_token_ids=ends)
        made.append((prompt, dice.randrange(6, 20), seeded if index % 2 == 0 else GREEDY))
    return made


@pytest.fixture(scope="module")
def alone(model: Path) -> list[list[int]]:
    """The answer of each, one after another at depth 1."""
    return serve(make(model, pages=64), asked(), at_once=False).answers


def due(index: int, whole: list[int]) -> list[list[int]]:
    """What may have been said of an answer, for one that ends early."""
    if index in STOPS:
        at, keep = STOPS[index]
        return [whole[:keep] if len(whole) > at else whole]
    if index in LEAVES:
        return [whole[:count] for count in range(min(LEAVES[index], len(whole)), len(whole) + 1)]
    return [whole]


QUICK = ("fcfs", "swap", "chat-batch", "mlfq")


@pytest.mark.parametrize(
    "policy",
    [pytest.param(each, marks=() if each in QUICK else pytest.mark.slow) for each in sorted(names("policies"))],
)
def test_every_policy_says_at_depth_2_what_it_says_at_depth_1(model: Path, alone: list[list[int]], policy: str) -> None:
    """In a pool where some must give way."""
    for depth in (1, 2):
        served = serve(make(model, **SIZES), asked(), policy=policy, depth=depth, running_limit=8)
        assert served.answers == alone, depth


async def _visit(engine: Engine, streams: list[Stream]) -> None:
    async def client(index: int, stream: Stream) -> None:
        async for _ in stream:
            if index in LEAVES and len(stream.tokens) >= LEAVES[index]:
                stream.cancel()
            if index in STOPS and len(stream.tokens) >= STOPS[index][0]:
                engine.stop(stream.request, STOPS[index][1])

    async with anyio.create_task_group() as clients:
        for index, (prompt, most, sampling) in enumerate(asked()):
            streams.append(engine.submit(prompt, most, sampling=sampling))
            clients.start_soon(client, index, streams[-1])
    await engine.drained()


def config_of(model: Path, placement: str, policy: str, depth: int) -> Config:
    return validate(
        Config(
            model=ModelConfig(path=str(model), placement=placement, threads=1, deterministic=True),  # type: ignore[arg-type]
            scheduler=SchedulerConfig(policy=policy, token_budget=32, running_limit=8, depth=depth),
            memory=MemoryConfig(allocator="paged", **SIZES),  # type: ignore[arg-type]
        )
    )


@pytest.mark.parametrize("policy", ["swap", pytest.param("chat-batch", marks=pytest.mark.slow)])
@pytest.mark.parametrize("placement", ["inline", "thread", pytest.param("process", marks=pytest.mark.slow)])
@pytest.mark.parametrize("depth", [1, 2])
def test_wherever_steps_are_executed(
    model: Path, alone: list[list[int]], tmp_path: Path, placement: str, depth: int, policy: str
) -> None:
    config = config_of(model, placement, policy, depth)
    scheduler = build_scheduler(config)
    path = tmp_path / "run.jsonl"
    header = journal_header(config, scheduler, "live")
    writer = JournalWriter(path, header, lambda: msgspec.json.encode(capture(scheduler)))
    preempted: Counter[str] = Counter()
    most = 0
    streams: list[Stream] = []

    def observe(now_ns: int, events: Sequence[Event], out: Sequence[Instruction]) -> None:
        nonlocal most
        writer.observe(now_ns, events, out)
        preempted.update(each.mode for each in out if isinstance(each, Preempted))
        most = max(most, len(scheduler.state.inflight))

    async def main() -> None:
        place = make_place(config)
        place.open()
        engine = Engine(scheduler, place, RealClock(), observers=[observe])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.run)
            with anyio.fail_after(120):
                await _visit(engine, streams)
            engine.close()
        assert not engine.failed, engine.failed

    anyio.run(main)
    writer.close()
    for index, stream in enumerate(streams):
        assert stream.finished is not None
        assert stream.tokens[: stream.finished.tokens] in due(index, alone[index]), index
    assert most == depth
    assert preempted["swap"] + preempted["recompute"] > 0
    assert scheduler.state.allocator.usage().used == 0
    assert replay(path).difference is None
