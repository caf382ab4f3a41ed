"""More than one step in flight: the next one is where it is executed before the one before it is over, and a failure
makes void what was launched before it was known."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
import pytest

from stepwell.core.clock import RealClock
from stepwell.core.config import Config
from stepwell.core.engine import Engine
from stepwell.core.errors import InvariantError
from stepwell.core.events import Event, StepFailed
from stepwell.core.execution import StepResult
from stepwell.core.instructions import Launch, Preempted
from stepwell.core.placement import Ask, Execution, StepBatch, Threaded
from stepwell.core.placement_process import Process, WorkerDied
from stepwell.core.worker import Broken, Done
from stepwell.sim.backend import EchoBackend
from stepwell.tests.core.house import DEPTHS, house
from stepwell.tests.core.test_preparing import Scripted, until


class Noting(EchoBackend):
    """Says which steps it executed; those in ``fails`` fail."""

    def __init__(self, fails: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.steps: list[int] = []
        self.known: list[int] = []
        self.fails = fails

    def admit(self, request: int, *rest: Any) -> None:
        self.known.append(request)

    def release(self, request: int) -> None:
        self.known.remove(request)

    def execute(self, batch: Launch) -> StepResult:
        self.steps.append(batch.step)
        if -batch.step in self.fails:
            raise RuntimeError("the driver is gone")
        return StepResult(batch.step, failed="no luck" if batch.step in self.fails else "")


# ------------------------------------------------------------------------------------------------ where it is executed


def test_what_was_launched_before_a_failure_was_known_is_not_executed() -> None:
    backend = Noting(fails=(2, 6))
    execution = Execution(backend)
    epochs = {1: 0, 2: 0, 3: 0, 4: 0, 5: 1, 6: 1, 7: 1, 8: 4}
    results = [execution.carry_out(StepBatch(Launch(step), epoch=epoch)) for step, epoch in epochs.items()]
    assert backend.steps == [1, 2, 5, 6, 8]
    assert [each.step if each else 0 for each in results] == [1, 2, 0, 0, 5, 6, 0, 8]


def test_but_who_came_and_went_with_it_is_told_of() -> None:
    from stepwell.core.placement import Admission

    backend = Noting(fails=(1,))
    execution = Execution(backend)
    came = [Admission(request, [1], 1, None) for request in (4, 5)]  # type: ignore[arg-type]
    execution.carry_out(StepBatch(Launch(1), admitted=came))
    assert execution.carry_out(StepBatch(Launch(2), admitted=came[:1], released=[5])) is None
    assert backend.known == [4, 4]


def test_an_exception_makes_the_rest_void() -> None:
    backend = Noting(fails=(-1,))
    execution = Execution(backend)
    with pytest.raises(RuntimeError):
        execution.carry_out(StepBatch(Launch(1)))
    assert execution.carry_out(StepBatch(Launch(2))) is None
    assert backend.steps == [1]


def test_a_thread_goes_on_while_the_event_loop_is_busy() -> None:
    """The steps that it was given are executed though nobody looks."""
    backend = Noting(fails=(3,))

    async def main() -> None:
        place = Threaded(backend)
        asks = [place.begin(Launch(step)) for step in (1, 2, 3, 4)]
        deadline = time.monotonic() + 60
        while len(backend.steps) < 3:
            assert time.monotonic() < deadline
            time.sleep(0.001)  # on purpose: the loop stands still
        assert [(await ask()).failed for ask in asks[:3]] == ["", "", "no luck"]
        place.begin(Launch(5))  # launched by a scheduler that does not know yet
        place.drop()
        assert (await place.begin(Launch(6))()).step == 6
        assert backend.steps == [1, 2, 3, 6]
        place.close()

    anyio.run(main)


@DEPTHS
def test_as_many_steps_are_given_as_may_be_in_flight(depth: int) -> None:
    """By the engine, to a thread that is held up in the first of them."""
    home = house(depth)
    go, seen = threading.Event(), []

    class Held(EchoBackend):
        def execute(self, batch: Launch) -> StepResult:
            go.wait(60)
            return super().execute(batch)

    class Watching(Threaded):
        def begin(self, launch: Launch) -> Ask:
            seen.append(launch.step)
            return super().begin(launch)

    async def main() -> None:
        engine = Engine(home.scheduler, Watching(Held()), RealClock())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.run)
            stream = engine.submit([1, 2, 3, 4], 100)
            await until(lambda: len(seen) == depth)
            await anyio.sleep(0.01)
            assert len(seen) == depth
            go.set()
            await stream.wait()
            assert stream.tokens == [1, 2, 3, 4]
            engine.close()

    anyio.run(main)
    assert len(seen) >= 4


# ------------------------------------------------------------------------------------------------ a process, by hand


class House:
    """A place over a worker by hand, and what it volunteered."""

    def __init__(self, place: Process, workers: list[Scripted]) -> None:
        self.place, self.workers = place, workers
        self.lost: list[Ask] = []

    @property
    def told(self) -> list[tuple[int, int]]:
        """Steps and epochs that the present worker was sent."""
        return [(each.launch.step, each.epoch) for each in self.workers[-1].told]

    async def sent(self, count: int) -> None:
        await until(lambda: len(self.workers[-1].told) == count)

    async def restarted(self, count: int) -> None:
        await until(lambda: self.place.restarts == count)


def by_hand(visit: Callable[[House], Awaitable[None]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.core.placement_process.BACKOFF_S", 0.0)
    workers: list[Scripted] = []

    def start(config: Config) -> Scripted:
        workers.append(Scripted(config))
        return workers[-1]

    async def main() -> None:
        place = Process(Config(), start)
        place.open()
        home = House(place, workers)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(place.run, home.lost.append)
            with anyio.fail_after(60):
                await visit(home)
            tasks.cancel_scope.cancel()

    anyio.run(main)


def test_the_next_step_is_sent_before_the_one_before_it_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    async def visit(home: House) -> None:
        asks = [home.place.begin(Launch(step)) for step in (1, 2)]
        await home.sent(2)
        assert home.told == [(1, 0), (2, 0)]
        for step in (1, 2):
            home.workers[0].say(Done(StepResult(step)))
        assert [(await ask()).step for ask in asks] == [1, 2]

    by_hand(visit, monkeypatch)


def test_after_a_failure_what_the_worker_leaves_out_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def visit(home: House) -> None:
        first, _, _ = (home.place.begin(Launch(step)) for step in (1, 2, 3))
        await home.sent(3)
        home.workers[0].say(Done(StepResult(1, failed="no luck")))
        assert (await first()).failed
        home.place.begin(Launch(4))  # nobody has told the scheduler yet
        await home.sent(4)
        home.place.drop()
        fifth = home.place.begin(Launch(5))
        await home.sent(5)
        assert home.told[3:] == [(4, 0), (5, 1)]
        home.workers[0].say(Done(StepResult(5)))
        assert (await fifth()).step == 5

    by_hand(visit, monkeypatch)


def test_a_worker_that_dies_fails_the_oldest_step_and_the_next_one_gets_what_comes_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def visit(home: House) -> None:
        asks = [home.place.begin(Launch(step)) for step in (1, 2)]
        await home.sent(2)
        home.workers[0].say(Done(StepResult(1)))
        home.workers[0].say(WorkerDied("was killed"))
        await home.restarted(1)
        assert not (await asks[0]()).failed
        void = home.place.begin(Launch(3))
        await anyio.sleep(0.01)
        assert home.told == [], "what was launched for the dead is not for the living"
        loss = await asks[1]()
        assert (loss.step, loss.device_lost) == (2, True)
        home.place.drop()
        fourth = home.place.begin(Launch(4))
        await home.sent(1)
        home.workers[1].say(Done(StepResult(4)))
        assert (await fourth()).step == 4
        assert not home.lost
        del void

    by_hand(visit, monkeypatch)


def test_one_that_dies_between_steps_says_so_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def visit(home: House) -> None:
        home.workers[0].say(WorkerDied("was killed"))
        await until(lambda: bool(home.lost))
        home.place.begin(Launch(1))  # the scheduler has not heard of it
        await home.restarted(1)
        loss = await home.lost[0]()
        assert (loss.step, loss.device_lost, "was killed" in loss.failed) == (0, True, True)
        home.place.drop()
        second = home.place.begin(Launch(2))
        await home.sent(1)
        home.workers[1].say(Done(StepResult(2)))
        assert (await second()).step == 2

    by_hand(visit, monkeypatch)


def test_a_death_right_after_a_failed_step_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The failure makes void the very step that would have told of the death."""

    async def visit(home: House) -> None:
        first, _ = (home.place.begin(Launch(step)) for step in (1, 2))
        await home.sent(2)
        home.workers[0].say(Done(StepResult(1, failed="no luck")))
        home.workers[0].say(WorkerDied("was killed"))
        await home.restarted(1)
        assert not (await first()).device_lost
        home.place.drop()
        (ask,) = home.lost
        home.place.begin(Launch(3))
        assert (await ask()).device_lost
        home.place.drop()
        assert home.told == []
        home.place.begin(Launch(4))
        await home.sent(1)

    by_hand(visit, monkeypatch)


def test_a_worker_that_is_broken_or_talks_of_other_steps_ends_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    async def visit(home: House) -> None:
        ask = home.place.begin(Launch(1))
        home.workers[0].say(Broken("KeyError: 3"))
        with pytest.raises(InvariantError, match="KeyError: 3"):
            await ask()

    by_hand(visit, monkeypatch)

    async def other(home: House) -> None:
        home.place.begin(Launch(1))
        home.workers[0].say(Done(StepResult(2)))
        await anyio.sleep(5)

    with pytest.raises((InvariantError, ExceptionGroup)) as caught:
        by_hand(other, monkeypatch)
    assert "step 2" in str(caught.getrepr())


# ------------------------------------------------------------------------------------------------ the scheduler


@DEPTHS
def test_a_loss_between_steps_costs_nobody_a_failure(depth: int) -> None:
    """Whoever waits goes on waiting; whoever was paused on the device is computed again."""
    home = house(depth, max_failures=1)

    async def visit(engine: Engine) -> None:
        told: list[StepFailed] = []

        def note(now_ns: int, events: Sequence[Event], out: object) -> None:
            told.extend(each for each in events if isinstance(each, StepFailed))

        home.observers.append(note)
        await engine.submit([1, 2, 3], 9).wait()
        for number in range(1, 4):
            await until(lambda: not home.scheduler.state.inflight)
            engine._steps.lost(_loss)
            while len(told) < number:
                await anyio.sleep(0)
            stream = engine.submit([4, 5], 9)
            await stream.wait()
            assert stream.tokens == [4, 5]
        assert [each.step for each in told] == [0] * 3
        assert not any(isinstance(each, Preempted) for each in home.decided)
        assert home.scheduler.state.allocator.usage().used == 0

    home.serve(visit)


async def _loss() -> StepResult:
    return StepResult(0, failed="gone", device_lost=True)


def test_no_other_failure_is_between_steps() -> None:
    scheduler = house().scheduler
    with pytest.raises(InvariantError, match="step 0 failed"):
        scheduler.handle(1, [StepFailed(0, reason="nothing was lost")])
    with pytest.raises(InvariantError, match="step 3 failed"):
        scheduler.handle(2, [StepFailed(3, device_lost=True)])
