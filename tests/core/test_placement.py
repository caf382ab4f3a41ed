"""Wherever steps are executed, clients hear the same; and a worker process may die at any moment."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from stepwell.core.build import build_scheduler
from stepwell.core.clock import RealClock
from stepwell.core.config import Config, CostConfig, MemoryConfig, ModelConfig, SchedulerConfig, validate
from stepwell.core.engine import Engine
from stepwell.core.errors import InvariantError, UserError
from stepwell.core.events import Event, StepFailed
from stepwell.core.execution import StepResult
from stepwell.core.grammar import Grammar
from stepwell.core.instructions import Instruction, Launch
from stepwell.core.placement import Inline, Place, Threaded
from stepwell.core.placement_open import make_place
from stepwell.core.placement_process import Process
from stepwell.core.streams import Stream
from stepwell.sim.backend import EchoBackend

PLACEMENTS = ("inline", "thread", "process")
STEP = {"base_ns": 1_000_000, "prefill_token_ns": 0, "decode_request_ns": 0, "kv_token_ps": 0, "swap_page_ns": 0}


def config_of(placement: str, **scheduler: Any) -> Config:
    """A pool that holds about half of what is asked of it."""
    return validate(
        Config(
            model=ModelConfig(placement=placement),  # type: ignore[arg-type]
            cost=CostConfig(options=STEP),
            scheduler=SchedulerConfig(**{"policy": "swap", "token_budget": 64, "running_limit": 16, **scheduler}),
            memory=MemoryConfig(pages=24, page_size=4, host_pages=8),
        )
    )


def prompts(count: int) -> list[list[int]]:
    return [[(7 * index + place) % 50 for place in range(5 + index % 9)] for index in range(count)]


def serve(config: Config, visit: Callable[[Engine, Place], Awaitable[None]]) -> tuple[Engine, list[Event]]:
    """An engine with its place, and one visitor; closed after that."""
    events: list[Event] = []

    def note(now_ns: int, some: Sequence[Event], out: Sequence[Instruction]) -> None:
        events.extend(some)

    async def main() -> Engine:
        place = make_place(config)
        place.open()
        engine = Engine(build_scheduler(config), place, RealClock(), observers=[note])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.run)
            try:
                with anyio.fail_after(60):
                    await visit(engine, place)
                    await engine.drained()
            finally:
                engine.close()
        return engine

    return anyio.run(main), events


def failures(events: list[Event]) -> list[StepFailed]:
    return [event for event in events if isinstance(event, StepFailed)]


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize(
    ("placement", "depth"), [*((placement, 1) for placement in PLACEMENTS), ("thread", 2), ("process", 2)]
)
def test_clients_hear_the_same(placement: str, depth: int) -> None:
    streams: list[Stream] = []

    async def visit(engine: Engine, place: Place) -> None:
        streams.extend(engine.submit(prompt, 100) for prompt in prompts(12))
        streams[3].cancel()
        for stream in streams:
            await stream.wait()

    engine, events = serve(config_of(placement, depth=depth), visit)
    assert not engine.failed
    assert not failures(events)
    for stream, prompt in zip(streams, prompts(12), strict=True):
        assert stream.tokens == prompt or stream is streams[3]
    assert engine.scheduler.state.allocator.usage().used == 0


@pytest.mark.parametrize(("moments", "depth"), [((1,), 1), ((4,), 2), ((2, 5, 9), 1)])
def test_ro_3_killed_the_process_comes_again_and_answers_go_on(moments: tuple[int, ...], depth: int) -> None:
    """Nothing is said twice, nothing is left out, and no request is the worse for it."""
    streams: list[Stream] = []
    pids: list[int] = []

    async def visit(engine: Engine, place: Place) -> None:
        assert isinstance(place, Process)
        streams.extend(engine.submit(prompt, 100) for prompt in prompts(12))
        for moment in moments:
            while max(len(stream.tokens) for stream in streams) < moment:
                await anyio.sleep(0.001)
            pids.append(place.pid)
            os.kill(place.pid, signal.SIGKILL)
            while place.restarts < len(pids):
                await anyio.sleep(0.001)
        for stream in streams:
            await stream.wait()
        assert not place.trouble
        pids.append(place.pid)

    engine, events = serve(config_of("process", depth=depth), visit)
    assert not engine.failed
    assert [stream.tokens for stream in streams] == prompts(12)
    assert {stream.finished.reason for stream in streams if stream.finished} == {"stop"}
    assert len(set(pids)) == len(moments) + 1
    assert all(event.device_lost and "signal 9" in event.reason for event in failures(events))
    assert all(map(gone, pids))


def test_one_that_dies_while_nobody_asks_is_replaced_at_once() -> None:
    async def visit(engine: Engine, place: Place) -> None:
        assert isinstance(place, Process)
        await engine.submit([1, 2, 3], 9).wait()
        os.kill(place.pid, signal.SIGKILL)
        while not place.restarts:
            await anyio.sleep(0.001)
        stream = engine.submit([4, 5], 9)
        await stream.wait()
        assert stream.tokens == [4, 5]

    engine, _ = serve(config_of("process"), visit)
    assert not engine.failed


def test_one_that_dies_with_half_a_frame_holds_nobody_up() -> None:
    """It was more than the socket takes, and it never read it."""

    async def visit(engine: Engine, place: Place) -> None:
        assert isinstance(place, Process)

        async def prepare() -> None:
            with pytest.raises(UserError, match="has ended"):
                await place.prepare(Grammar("json", "x" * 5_000_000))

        os.kill(place.pid, signal.SIGSTOP)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(prepare)
            stream = engine.submit([4, 5], 9)
            await anyio.sleep(0.05)
            os.kill(place.pid, signal.SIGKILL)
        await stream.wait()
        assert stream.tokens == [4, 5]

    assert not serve(config_of("process"), visit)[0].failed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_for_the_server_not_for_the_process(number: int) -> None:
    async def visit(engine: Engine, place: Place) -> None:
        assert isinstance(place, Process)
        stream = engine.submit(list(range(20)), 100)
        os.kill(place.pid, number)
        await stream.wait()
        assert not place.restarts

    assert not serve(config_of("process"), visit)[0].failed


@pytest.mark.parametrize("placement", ["thread", "process"])
def test_who_comes_and_goes_before_a_step_leaves_nothing_behind(placement: str) -> None:
    """However many do so while a step hangs: only those who stay are told of."""
    place = Process(config_of("process")) if placement == "process" else Threaded(EchoBackend())
    try:
        place.open()
        for request in range(1, 101):
            place.admit(request, [1] * 1000, 5)
            if request != 50:
                place.release(request)
        batch = place._orders.take(Launch(1))
        assert [each.request for each in batch.admitted] == [50]
        assert batch.released == []
        place.release(50)
        assert place._orders.take(Launch(2)).released == [50]
    finally:
        place.close()


def test_the_process_goes_with_the_server() -> None:
    place = make_place(config_of("process"))
    assert isinstance(place, Process)
    place.open()
    place.close()
    place.close()
    assert gone(place.pid)


def test_what_cannot_be_loaded_is_said_as_if_it_had_been_loaded_here(tmp_path: Path) -> None:
    config = validate(Config(model=ModelConfig(path=str(tmp_path / "none.gguf"))))
    place = make_place(config)
    assert isinstance(place, Process)
    with pytest.raises(UserError, match=r"none\.gguf") as refused:
        place.open()
    assert refused.value.field == "model.path"
    place.close()
    assert gone(place.pid)


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_token_that_the_model_does_not_have_is_refused_before_any_step(placement: str) -> None:
    """Where the backend is elsewhere too."""

    class Small(EchoBackend):
        info = EchoBackend.info.__class__(model="echo", vocab_size=10)

        def admit(self, request: int, prompt: Any, *rest: Any) -> None:
            self.info.check_prompt(prompt)

    place = make_place(config_of("process")) if placement == "process" else None
    if place is not None:
        place.open()
        place._info = Small.info  # type: ignore[attr-defined]
    else:
        place = Threaded(Small()) if placement == "thread" else Inline(Small())
    try:
        for prompt in ([], [10], [-1, 3]):
            with pytest.raises(UserError):
                place.admit(1, prompt, 5)
        place.admit(1, [9, 0], 5)
    finally:
        place.close()


def test_a_step_that_raises_in_its_thread_stops_the_engine() -> None:
    class Broken(EchoBackend):
        closed = False

        def execute(self, batch: Launch) -> StepResult:
            raise RuntimeError("the driver is gone")

        def close(self) -> None:
            self.closed = True

    backend = Broken()
    config = config_of("thread")

    async def main() -> Engine:
        engine = Engine(build_scheduler(config), Threaded(backend), RealClock())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.run)
            with pytest.raises(InvariantError, match="the driver is gone"):
                await engine.submit([1], 1).wait()
        return engine

    assert "the driver is gone" in anyio.run(main).failed
    until(lambda: backend.closed)


DEADLY = """
import os, sys
sys.path[:] = {path!r}
from stepwell.core import worker
worker.Execution.carry_out = lambda self, batch: os._exit(7)
worker.main({descriptor})
"""
"""A worker that every step kills."""


@pytest.mark.parametrize("max_failures", [0, 2])
def test_ro_3_what_kills_every_process_is_given_up(monkeypatch: pytest.MonkeyPatch, max_failures: int) -> None:
    """The request, if its failures are counted; otherwise the engine stops.  Nobody waits for ever."""
    monkeypatch.setattr("stepwell.core.placement_process._PROGRAM", DEADLY)
    monkeypatch.setattr("stepwell.core.placement_process.BACKOFF_S", 0.0)

    async def visit(engine: Engine, place: Place) -> None:
        stream = engine.submit([1, 2, 3], 9)
        if max_failures:
            assert (await stream.wait()).reason == "error"
        else:
            with pytest.raises(InvariantError, match="ended with status 7, 6 times without a finished step"):
                await stream.wait()

    engine, events = serve(config_of("process", max_failures=max_failures), visit)
    assert bool(engine.failed) == (not max_failures)
    assert len(failures(events)) == (max_failures + 1 if max_failures else 5)


def test_a_process_that_does_not_come_up_again_stops_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.core.placement_process.BACKOFF_S", 0.0)

    async def visit(engine: Engine, place: Place) -> None:
        assert isinstance(place, Process)
        place._config = msgspec.structs.replace(place._config, cost=CostConfig(model="nobody"))
        os.kill(place.pid, signal.SIGKILL)
        with pytest.raises(InvariantError, match="without a finished step"):
            await engine.submit([1, 2, 3], 9).wait()

    assert serve(config_of("process"), visit)[0].failed


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
