"""A grammar is made ready wherever steps are executed, beside them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from stepwell.core.config import Config, ModelConfig, validate
from stepwell.core.errors import CapacityError, UserError
from stepwell.core.execution import BackendInfo, StepResult
from stepwell.core.grammar import Grammar
from stepwell.core.instructions import Launch
from stepwell.core.placement import Inline, Place, Preparation, Threaded
from stepwell.core.placement_process import Process, WorkerDied
from stepwell.core.worker import Done, Prepared
from stepwell.sim.backend import EchoBackend

GOOD, BAD = Grammar("regex", "good"), Grammar("regex", "bad")


class Holding(EchoBackend):
    """Notes the thread in which a grammar is prepared."""

    info = BackendInfo(model="echo", grammars=True)

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[int] = []

    def prepare(self, grammar: Grammar) -> None:
        self.threads.append(threading.get_ident())
        if grammar == BAD:
            raise UserError("is bad", field="x")


@pytest.mark.parametrize("kind", [Inline, Threaded])
def test_beside_the_event_loop_if_there_is_a_beside(kind: Callable[[Any], Place]) -> None:
    backend = Holding()
    place = kind(backend)

    async def main() -> None:
        await place.prepare(GOOD)
        with pytest.raises(UserError, match="is bad"):
            await place.prepare(BAD)

    anyio.run(main)
    here = threading.get_ident()
    assert len(backend.threads) == 2
    assert (here in backend.threads) == (kind is Inline)
    place.close()


@pytest.mark.parametrize("placement", ["inline", "thread", "process"])
def test_a_backend_that_has_none_of_it_refuses(placement: Any) -> None:
    from stepwell.core.placement_open import make_place

    place = make_place(validate(Config(model=ModelConfig(placement=placement))))
    place.open()

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(place.run, lambda ask: None)
            with pytest.raises(UserError, match="no answer to a grammar"):
                await place.prepare(GOOD)
            tasks.cancel_scope.cancel()

    try:
        anyio.run(main)
    finally:
        place.close()


# ------------------------------------------------------------------------------------------------ a process, by hand


class Scripted:
    """A worker whose answers a test gives."""

    pid = 1

    def __init__(self, config: Config) -> None:
        self.told: list[Any] = []
        self._answers: asyncio.Queue[Any] = asyncio.Queue()

    def opened(self) -> BackendInfo:
        return BackendInfo(model="echo", grammars=True)

    async def ready(self) -> BackendInfo:
        return self.opened()

    async def tell(self, value: object) -> None:
        self.told.append(value)

    async def answer(self) -> Any:
        said = await self._answers.get()
        if isinstance(said, Exception):
            raise said
        return said

    def say(self, said: Any) -> None:
        self._answers.put_nowait(said)

    def end(self) -> None:
        """Nothing to end."""


def by_hand(visit: Callable[[Process, list[Scripted]], Awaitable[None]]) -> None:
    workers: list[Scripted] = []

    def start(config: Config) -> Scripted:
        workers.append(Scripted(config))
        return workers[-1]

    async def main() -> None:
        place = Process(Config(), start)
        place.open()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(place.run, lambda ask: None)
            with anyio.fail_after(20):
                await visit(place, workers)
            tasks.cancel_scope.cancel()

    anyio.run(main)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await anyio.sleep(0)


def test_answers_come_in_any_order_and_between_steps() -> None:
    outcome: dict[str, Any] = {}

    async def visit(place: Process, workers: list[Scripted]) -> None:
        async def prepare(name: str, grammar: Grammar) -> None:
            try:
                await place.prepare(grammar)
                outcome[name] = None
            except UserError as error:
                outcome[name] = error.message

        async def step() -> None:
            outcome["step"] = await place.begin(Launch(7))()

        (worker,) = workers
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(prepare, "first", GOOD)
            await until(lambda: len(worker.told) == 1)
            tasks.start_soon(step)
            await until(lambda: len(worker.told) == 2)
            tasks.start_soon(prepare, "second", BAD)
            await until(lambda: len(worker.told) == 3)
            assert worker.told[0] == Preparation(1, GOOD)
            assert worker.told[2] == Preparation(2, BAD)
            for said in (Prepared(2, "is bad"), Done(StepResult(7)), Prepared(1), Prepared(99)):
                worker.say(said)
        assert not place._preparing

    by_hand(visit)
    assert outcome.pop("step").step == 7
    assert outcome == {"first": None, "second": "is bad"}


def test_whoever_waits_is_told_when_the_process_ends_and_nobody_is_told_to_wait_for_none() -> None:
    async def visit(place: Process, workers: list[Scripted]) -> None:
        async with anyio.create_task_group() as tasks:

            async def prepare() -> None:
                with pytest.raises(UserError, match="has ended"):
                    await place.prepare(GOOD)
                with pytest.raises(CapacityError, match="started again"):
                    await place.prepare(GOOD)

            tasks.start_soon(prepare)
            await until(lambda: bool(workers[0].told))
            workers[0].say(WorkerDied("was killed"))
        await until(lambda: not place.trouble)
        assert len(workers) == 2

    by_hand(visit)


def test_who_leaves_meanwhile_leaves_nothing_behind() -> None:
    async def visit(place: Process, workers: list[Scripted]) -> None:
        with anyio.move_on_after(0.01):
            await place.prepare(GOOD)
        assert not place._preparing
        workers[0].say(Prepared(1))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(place.prepare, GOOD)
            await until(lambda: len(workers[0].told) == 2)
            workers[0].say(Prepared(2))

    by_hand(visit)
