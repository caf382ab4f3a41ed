"""The live engine in real time: what its clients see, whatever happens to their requests."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from stepwell.core.engine import Engine
from stepwell.core.errors import CapacityError, InvariantError, UserError
from stepwell.core.instructions import Preempted
from stepwell.core.streams import Stream
from stepwell.tests.core.house import DEPTHS, crowd, house
from stepwell.tests.core.shells import Client, answer_of, prompt_of

# ------------------------------------------------------------------------------------------------ answers


@DEPTHS
@pytest.mark.parametrize("virtual", [False, True])
def test_every_client_gets_its_own_answer_whole_and_once(depth: int, virtual: bool) -> None:
    async def visit(engine: Engine) -> None:
        clients = await crowd(engine, 12, 9)
        assert [client.stream.request for client in clients] == list(range(1, 13))
        for id, client in enumerate(clients, 1):
            assert client.end() == ("stop", 9)
            assert client.stream.tokens == answer_of(id, 9, 9)

    house(depth, running_limit=5, token_budget=16, virtual=virtual).serve(visit)


@DEPTHS
def test_max_tokens_ends_with_length(depth: int) -> None:
    async def visit(engine: Engine) -> None:
        for most in (1, 2, 5):
            (client,) = await crowd(engine, 1, 8, most)
            assert client.end() == ("length", most)

    house(depth).serve(visit)


@DEPTHS
def test_recompute_and_swap_send_nothing_twice(depth: int) -> None:
    """PR-1: the backend says the token of the position that a launch names, so a wrong one would show."""
    for policy in ("fcfs", "swap"):
        home = house(
            depth,
            policy=policy,
            memory={"pages": 24, "page_size": 4, "host_pages": 40},
            lengths=dict.fromkeys(range(1, 9), 37),
        )

        async def visit(engine: Engine) -> None:
            for id, client in enumerate(await crowd(engine, 8, 15), 1):
                assert client.end() == ("stop", 37)
                assert client.stream.tokens == answer_of(id, 15, 37)

        home.serve(visit)
        preempted = [each for each in home.decided if isinstance(each, Preempted)]
        assert len(preempted) > 2
        assert {each.mode for each in preempted} >= {"swap" if policy == "swap" else "recompute"}
        assert sum(1 for each in home.metrics.requests.values() if each.first_token_ns) == 8
        assert all(each.prompt_tokens == 15 for each in home.metrics.requests.values())


def test_a_reader_that_lags_gets_all_tokens_in_fewer_chunks() -> None:
    async def visit(engine: Engine) -> None:
        lazy = engine.submit(prompt_of(1, 30), 1000)
        eager = Client(engine.submit(prompt_of(2, 30), 1000))
        first = await anext(lazy)
        await eager.read()
        rest = [chunk async for chunk in lazy]
        assert len(rest) == 1
        assert first + rest[0] == answer_of(1, 30, 30)
        assert len(eager.chunks) > 5
        assert [chunk async for chunk in lazy] == []
        assert (await lazy.wait()).reason == "stop"

    house(virtual=True).serve(visit)


def test_two_readers_of_one_stream_share_it_and_both_end() -> None:
    async def visit(engine: Engine) -> None:
        stream = engine.submit(prompt_of(1, 20), 1000)
        readers = [Client(stream), Client(stream)]
        async with anyio.create_task_group() as tasks:
            for reader in readers:
                tasks.start_soon(reader.read)
        got = [token for reader in readers for chunk in reader.chunks for token in chunk]
        assert sorted(got) == answer_of(1, 20, 20)

    house(virtual=True).serve(visit)


def test_a_stop_string_takes_back_what_was_not_read() -> None:
    async def visit(engine: Engine) -> None:
        read, unread = (engine.submit(prompt_of(id, 30), 1000) for id in (1, 2))
        got: list[int] = []
        async for chunk in read:
            got += chunk
            if len(got) == 5:
                with pytest.raises(InvariantError, match="cannot keep 99 tokens of"):
                    engine.stop(2, 99)
                engine.stop(1, 3)
                engine.stop(2, 2)
        assert got == read.tokens == answer_of(1, 30, 5)
        assert await read.wait() == read.finished
        finished = await unread.wait()
        assert (finished.reason, finished.tokens) == ("stop", 2)
        assert unread.tokens == answer_of(2, 30, 2)
        engine.stop(2, 1)  # too late, and harmless
        engine.stop(77, 1)

    house(virtual=True).serve(visit)


# ------------------------------------------------------------------------------------------------ refusals


def test_what_is_asked_for_wrongly_is_refused_at_once() -> None:
    async def visit(engine: Engine) -> None:
        asks: tuple[tuple[list[int], int, dict[str, Any], str], ...] = (
            ([], 5, {}, "prompt"),
            ([1], 0, {}, "max_tokens"),
            ([1], -3, {}, "max_tokens"),
            ([1], 5, {"klass": "royal"}, "class"),
            ([1], 5, {"priority": 1 << 31}, "priority"),
            ([1], 5, {"program": "x" * 257}, "program"),
        )
        for prompt, most, options, name in asks:
            with pytest.raises(UserError) as caught:
                engine.submit(prompt, most, **options)
            assert caught.value.field == name
        stream = engine.submit([5, 6], 3)
        assert stream.request == 1
        assert (await stream.wait()).reason == "stop"

    house().serve(visit)


def test_pins_of_one_instant_are_judged_together() -> None:
    async def visit(engine: Engine) -> None:
        engine.pin(list(range(1, 61)), True)
        engine.pin(list(range(1, 61)), True)
        engine.pin(list(range(101, 141)), True)
        with pytest.raises(UserError, match="has 3 full pages, and 0 of them can be pinned"):
            engine.pin([201, 202, 203], True)
        engine.pin([201, 202, 203], False)
        assert (await engine.submit([5, 6], 3).wait()).reason == "stop"
        assert engine.scheduler.state.allocator.pin_room(list(range(1, 61))) == 60

    house(allocator="prefix").serve(visit)


def test_want_of_room_comes_through_the_stream() -> None:
    async def visit(engine: Engine) -> None:
        clients = await crowd(engine, 4, 6)
        assert [client.end() for client in clients] == [("stop", 6)] * 3 + [("queue_full", 0)]
        too_long = Client(engine.submit(range(1, 5000), 1))
        await too_long.read()
        assert too_long.end() == ("prompt_too_long", 0)
        with pytest.raises(CapacityError, match=r"prompt_too_long \(limit 1599\)"):
            await too_long.stream.wait()
        engine.close()
        with pytest.raises(CapacityError, match="shutting down") as caught:
            engine.submit([1], 1)
        assert caught.value.code == "not_serving"

    home = house(virtual=True, max_waiting=3)
    home.serve(visit)
    assert home.metrics.refused == {"queue_full": 1, "prompt_too_long": 1}


def test_close_lets_everybody_finish() -> None:
    async def visit(engine: Engine) -> None:
        streams = [engine.submit(prompt_of(id, 7), 1000) for id in range(1, 4)]
        engine.close()
        assert [(await stream.wait()).reason for stream in streams] == ["stop"] * 3

    house().serve(visit)


def test_a_request_that_expires_is_never_begun() -> None:
    async def visit(engine: Engine) -> None:
        long = engine.submit(prompt_of(1, 50), 1000)
        late = engine.submit(prompt_of(2, 5), 1000, expires_ns=100_000)
        finished = await late.wait()
        assert (finished.reason, finished.tokens) == ("expired", 0)
        assert (await long.wait()).reason == "stop"

    house(running_limit=1, token_budget=64, virtual=True).serve(visit)


# ------------------------------------------------------------------------------------------------ cancels


def test_a_cancel_before_the_engine_looked() -> None:
    async def visit(engine: Engine) -> None:
        stream = engine.submit(prompt_of(1, 5), 9)
        stream.cancel()
        finished = await stream.wait()
        assert (finished.reason, finished.tokens) == ("cancelled", 0)
        await engine.drained()
        other = engine.submit(prompt_of(2, 5), 9)
        assert other.request == 2
        assert (await other.wait()).tokens == 5

    home = house()
    home.serve(visit)
    assert list(home.metrics.requests) == [2]


@DEPTHS
def test_cancels_at_every_moment_give_everything_back(depth: int) -> None:
    async def visit(engine: Engine) -> None:
        async def leave_after(stream: Stream, tokens: int) -> None:
            got: list[int] = []
            if tokens < 6:
                await anyio.sleep(tokens * 1e-5)  # while it waits, or before the engine looked
                stream.cancel()
            async for chunk in stream:
                got += chunk
                if len(got) >= tokens:
                    stream.cancel()
                    stream.cancel()
            stream.cancel()
            assert stream.finished is not None
            assert len(got) == len(stream.tokens) == stream.finished.tokens
            assert stream.finished.reason == ("cancelled" if tokens < 20 else "stop")
            assert got == answer_of(stream.request, 20, len(got))

        async with anyio.create_task_group() as tasks:
            for id in range(1, 31):
                tasks.start_soon(leave_after, engine.submit(prompt_of(id, 20), 1000), (id * 7) % 30)
        await engine.drained()

    home = house(depth, running_limit=4, token_budget=16, virtual=True)
    home.serve(visit)
    reasons = [each.reason for each in home.metrics.requests.values()]
    assert len(reasons) == 29
    assert (reasons.count("cancelled"), reasons.count("stop")) == (19, 10)
