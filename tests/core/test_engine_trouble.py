"""The live engine in trouble: failed steps, broken laws, cancellation from outside; waiting, and the numbers after."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from stepwell.core.engine import Engine
from stepwell.core.errors import CapacityError, InvariantError
from stepwell.core.events import Event
from stepwell.core.instructions import Instruction
from stepwell.sim.backend import Fault
from stepwell.sim.replay import replay
from stepwell.tests.core.house import DEPTHS, House, crowd, house
from stepwell.tests.core.journals import writer_for
from stepwell.tests.core.shells import Client, answer_of, prompt_of

# ------------------------------------------------------------------------------------------------ failures


@DEPTHS
def test_after_a_failed_step_the_answers_are_the_same(depth: int) -> None:
    faults = {3: Fault(), 9: Fault(device_lost=True), 15: Fault()}
    home = house(depth, policy="swap", faults=faults, memory={"pages": 30, "page_size": 4, "host_pages": 30})

    async def visit(engine: Engine) -> None:
        for id, client in enumerate(await crowd(engine, 6, 18), 1):
            assert client.end() == ("stop", 18)
            assert client.stream.tokens == answer_of(id, 18, 18)

    home.serve(visit)
    assert home.metrics.failed_steps >= 3
    assert home.metrics.recomputed_tokens > 0


def test_whoever_is_to_blame_ends_and_the_others_go_on() -> None:
    async def visit(engine: Engine) -> None:
        clients = await crowd(engine, 3, 10)
        assert [client.end()[0] for client in clients] == ["stop", "error", "stop"]
        assert clients[1].end()[1] == 3

    house(faults={4: Fault(blamed=(2, 77))}).serve(visit)


def test_a_device_that_always_fails_ends_requests_with_a_reason() -> None:
    async def visit(engine: Engine) -> None:
        clients = await crowd(engine, 3, 10)
        assert [client.end() for client in clients] == [("error", 1)] * 3

    house(faults={step: Fault() for step in range(2, 20)}, max_failures=2).serve(visit)


BREAKS: dict[str, str] = {
    "backend": "RuntimeError: the driver is gone",
    "law": "I1 pages conserved: made up",
    "bug": "KeyError: 'made up'",
    "observer": "OSError: the observer",
    "fallback": "policy fcfs broke the rule 'plan raised': KeyError: 'made up'; there is nothing to fall back to",
}


def unplaced(text: str) -> str:
    """Without the place in the code that a policy's exception came from."""
    return re.sub(r" \(test_engine_trouble\.py, line \d+, in faulty\)", "", text)


def sabotage(home: House, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = home.scheduler.handle

    def broken(now_ns: int, events: Sequence[Event]) -> list[Instruction]:
        if home.scheduler.state.next_step >= 5:
            raise InvariantError("I1 pages conserved: made up") if what == "law" else KeyError("made up")
        return handle(now_ns, events)

    def observe(now_ns: int, events: Sequence[Event], out: Sequence[Instruction]) -> None:
        if home.scheduler.state.next_step >= 5:
            raise OSError("the observer")

    if what == "backend":
        home.device.breaks_at = 5
    elif what == "observer":
        home.observers.append(observe)
    elif what == "fallback":
        plan = home.scheduler.state.policy.plan

        def faulty(view: Any) -> Any:
            if view.step >= 5:
                raise KeyError("made up")
            return plan(view)

        monkeypatch.setattr(home.scheduler.state.policy, "plan", faulty)
    else:
        monkeypatch.setattr(home.scheduler, "handle", broken)


@DEPTHS
@pytest.mark.parametrize("what", sorted(BREAKS))
def test_when_a_law_is_broken_everybody_is_told(what: str, depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    home = house(depth, running_limit=2, token_budget=64)
    sabotage(home, what, monkeypatch)

    async def visit(engine: Engine) -> None:
        streams = [engine.submit(prompt_of(id, 20), 1000) for id in range(1, 6)]
        for id, stream in enumerate(streams, 1):
            client = Client(stream)
            with pytest.raises(InvariantError, match="the engine stopped: ") as caught:
                await client.read()
            assert BREAKS[what] in unplaced(str(caught.value))
            got = [token for chunk in client.chunks for token in chunk]
            assert got == stream.tokens == answer_of(id, 20, len(got))
            stream.cancel()
        assert unplaced(engine.failed) == BREAKS[what]
        await engine.drained()
        with pytest.raises(CapacityError, match=r"made up|gone|observer"):
            engine.submit([1], 1)

    engine = home.serve(visit)
    assert unplaced(engine.failed) == BREAKS[what]


def test_a_broken_law_breaks_the_replay_at_the_same_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bug is in the scheduler, so it is there at the desk too."""
    home = house(virtual=True)
    path = tmp_path / "run.jsonl"
    writer = writer_for(home.case, home.scheduler, path, batch_turns=1)
    home.observers.append(writer.observe)

    def bug(*_: object) -> None:
        raise ZeroDivisionError("a bug in the core")

    async def visit(engine: Engine) -> None:
        stream = engine.submit(prompt_of(1, 8), 1000)
        await anext(stream)
        monkeypatch.setattr("stepwell.core.state.State.finish", bug)
        with pytest.raises(InvariantError, match="a bug in the core"):
            await stream.wait()

    home.serve(visit)
    writer.close()
    found = replay(path).difference
    assert found is not None
    assert (found.field, found.recorded) == ("events", "accepted")
    assert "ZeroDivisionError: a bug in the core" in found.replayed
    assert found.line == len(path.read_bytes().splitlines())
    monkeypatch.undo()
    found = replay(path).difference
    assert found is not None
    assert (found.field, found.recorded) == ("instruction", "nothing")


def test_an_engine_that_is_cancelled_leaves_nobody_waiting() -> None:
    home = house()

    async def main() -> None:
        engine = Engine(home.scheduler, home.device, home.clock)
        streams = [engine.submit(prompt_of(id, 500), 1000) for id in (1, 2)]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.run)
            await anext(streams[0])
            tasks.cancel_scope.cancel()
        for stream in streams:
            with pytest.raises(CapacityError, match="the engine was shut down"):
                await stream.wait()
        await engine.drained()
        with pytest.raises(CapacityError):
            engine.submit([1], 1)

    anyio.run(main)
    assert home.device.closed == 1


# ------------------------------------------------------------------------------------------------ waiting


def test_drained_waits_for_requests_that_came_while_it_waited() -> None:
    order: list[str] = []

    async def visit(engine: Engine) -> None:
        async def wait(name: str) -> None:
            await engine.drained()
            order.append(name)

        await engine.drained()
        first = engine.submit(prompt_of(1, 9), 1000)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, "a")
            await anext(first)
            second = engine.submit(prompt_of(2, 20), 1000)
            tasks.start_soon(wait, "b")
            await first.wait()
            await second.wait()
            order.append("served")
        third = engine.submit(prompt_of(3, 5), 1000)
        await third.wait()
        await engine.drained()

    house(virtual=True).serve(visit)
    assert sorted(order) == ["a", "b", "served"]


def test_ids_go_on_where_a_restored_scheduler_stopped() -> None:
    home = house()
    home.scheduler.last_id = 41

    async def visit(engine: Engine) -> None:
        streams = [engine.submit([5, 6], 2) for _ in range(200)]
        assert [stream.request for stream in streams] == list(range(42, 242))
        await engine.drained()

    home.serve(visit)


def test_alarms_do_not_pile_up() -> None:
    """A policy that only ever waits names another time at every arrival; one alarm is set at a time."""
    home = house(policy="stepwell.tests.core.bad_policies:Waits", virtual=True)
    most = 0

    async def visit(engine: Engine) -> None:
        nonlocal most
        streams = []
        for index in range(100):
            streams.append(engine.submit([1, 2], 5))
            await home.clock.sleep_until((index + 1) * 1000)
            most = max(most, len(asyncio.all_tasks()))
        for stream in streams:
            stream.cancel()
        await engine.drained()

    home.serve(visit)
    assert most < 8


# ------------------------------------------------------------------------------------------------ metrics


@DEPTHS
def test_the_numbers_reconcile(depth: int) -> None:
    """ME-2: 60 finish, some preempted or failed on the way, 15 are aborted, 5 refused; then the house is idle."""
    home = house(
        depth,
        policy="swap",
        memory={"pages": 60, "page_size": 4, "host_pages": 20},
        running_limit=6,
        token_budget=24,
        max_waiting=75,
        faults={7: Fault(), 30: Fault(device_lost=True)},
        virtual=True,
    )
    clients: list[Client] = []

    async def visit(engine: Engine) -> None:
        async def leave(client: Client) -> None:
            async for chunk in client.stream:
                client.chunks.append(chunk)
                client.stream.cancel()

        clients.extend(Client(engine.submit(prompt_of(id, 10 + id % 17), 1000)) for id in range(1, 81))
        async with anyio.create_task_group() as tasks:
            for index, client in enumerate(clients):
                tasks.start_soon(leave if index % 8 == 1 else Client.read, client)
            await anyio.sleep(1e-4)
            for client in clients[70:75]:
                client.stream.cancel()
        await engine.drained()

    home.serve(visit)
    ends = [client.end() for client in clients]
    records = home.metrics.requests.values()
    reasons = [each.reason for each in records]
    assert [reason or "queue_full" for reason in reasons].count("rejected") == 5
    assert reasons.count("stop") + reasons.count("cancelled") == 75
    assert reasons.count("stop") == [reason for reason, _ in ends].count("stop")
    assert 10 <= reasons.count("cancelled") <= 15
    assert home.metrics.refused == {"queue_full": 5}
    assert sum(bool(each.first_token_ns) for each in records) == sum(bool(client.stream.tokens) for client in clients)
    assert [each.tokens for each in records] == [tokens for _, tokens in ends]
    gaps = sum(sum(each.counts) for each in home.metrics.gaps.values())
    assert gaps == sum(max(tokens - 1, 0) for _, tokens in ends)
    assert home.metrics.swaps + home.metrics.recomputes > 2
    assert 0 < home.metrics.recomputed_tokens < home.metrics.computed_tokens
    assert all(each.members == 0 for each in home.metrics.gaps.values())
    assert not home.metrics._live
    assert not home.metrics._marks
    assert not home.metrics._inflight
