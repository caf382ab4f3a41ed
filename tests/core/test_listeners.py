"""Streams that are listened to: what a listener hears and when, and what it may do to the engine from inside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import anyio
import pytest

from stepwell.core.clock import RealClock
from stepwell.core.engine import PER_LOOK, Engine
from stepwell.core.errors import CapacityError, InvariantError
from stepwell.core.instructions import Launch
from stepwell.core.protocols import StepResult
from stepwell.core.streams import Stream
from stepwell.tests.core.house import DEPTHS, House, house
from stepwell.tests.core.shells import answer_of, prompt_of


def nothing(ear: Ear) -> None:
    """The listener that only listens."""


@dataclass
class Ear:
    """A listener that notes everything, and does something each time it hears more."""

    stream: Stream
    does: Callable[[Ear], None] = nothing
    heard_so_far: list[int] = field(default_factory=list)
    ends: int = 0

    def __post_init__(self) -> None:
        self.stream.listen(self)

    def heard(self, tokens: Sequence[int]) -> None:
        assert not self.ends
        self.heard_so_far += tokens
        self.does(self)

    def ended(self) -> None:
        self.ends += 1
        assert (self.stream.finished is None) != (self.stream.error is None)

    @property
    def reason(self) -> str:
        assert self.ends == 1
        return self.stream.finished.reason if self.stream.finished else f"{self.stream.error}"


def listen(
    engine: Engine, count: int, prompt: int, does: Callable[[Ear], None] = nothing, most: int = 1000
) -> list[Ear]:
    return [Ear(engine.submit(prompt_of(id, prompt), most), does) for id in range(1, count + 1)]


@DEPTHS
@pytest.mark.parametrize("virtual", [False, True])
def test_a_listener_hears_the_whole_answer_once(depth: int, virtual: bool) -> None:
    async def visit(engine: Engine) -> None:
        ears = listen(engine, 12, 9)
        await engine.drained()
        for id, ear in enumerate(ears, 1):
            assert ear.reason == "stop"
            assert ear.heard_so_far == ear.stream.tokens == answer_of(id, 9, 9)

    house(depth, running_limit=5, token_budget=16, virtual=virtual).serve(visit)


def test_a_refusal_is_an_end() -> None:
    async def visit(engine: Engine) -> None:
        (ear,) = listen(engine, 1, 2000)
        await engine.drained()
        assert isinstance(ear.stream.error, CapacityError)
        assert (ear.ends, ear.heard_so_far) == (1, [])

    house().serve(visit)


def test_who_listens_late_hears_what_came_before() -> None:
    async def visit(engine: Engine) -> None:
        stream = engine.submit(prompt_of(1, 9), 1000)
        await engine.drained()
        ear = Ear(stream)
        assert ear.reason == "stop"
        assert ear.heard_so_far == answer_of(1, 9, 9)

    house().serve(visit)


def test_a_stream_has_one_reader() -> None:
    async def visit(engine: Engine) -> None:
        (ear,) = listen(engine, 1, 9)
        with pytest.raises(InvariantError, match="a reader already"):
            Ear(ear.stream)
        with pytest.raises(InvariantError, match="a reader already"):
            await anext(ear.stream)
        await engine.drained()

    house().serve(visit)


@DEPTHS
def test_a_listener_that_fails_takes_nobody_down(depth: int) -> None:
    def fails(ear: Ear) -> None:
        if ear.stream.request == 2 and len(ear.heard_so_far) == 4:
            raise ValueError("no such token")

    async def visit(engine: Engine) -> None:
        ears = listen(engine, 3, 9, fails)
        await engine.drained()
        assert [ear.reason for ear in ears[::2]] == ["stop", "stop"]
        assert ears[1].reason == "the stream's reader: ValueError: no such token"
        assert ears[1].heard_so_far == answer_of(2, 9, 4)

    home = house(depth)
    assert not home.serve(visit).failed


@DEPTHS
@pytest.mark.parametrize("virtual", [False, True])
def test_a_listener_may_stop_its_request(depth: int, virtual: bool) -> None:
    async def visit(engine: Engine) -> None:
        def stops(ear: Ear) -> None:
            if len(ear.heard_so_far) == 3 + ear.stream.request:
                engine.stop(ear.stream.request, 2)

        ears = listen(engine, 8, 50, stops)
        await engine.drained()
        for ear in ears:
            assert ear.reason == "stop"
            assert ear.stream.finished is not None
            assert ear.stream.finished.tokens == 2

    house(depth, virtual=virtual).serve(visit)


@DEPTHS
def test_a_listener_may_cancel_others_and_submit_more(depth: int) -> None:
    more: list[Ear] = []

    async def visit(engine: Engine) -> None:
        def meddles(ear: Ear) -> None:
            if len(ear.heard_so_far) == 3:
                for other in ears:
                    if other is not ear:
                        other.stream.cancel()
                stillborn = Ear(engine.submit(prompt_of(9, 5), 1000))
                stillborn.stream.cancel()
                assert stillborn.reason == "cancelled"
                more.append(Ear(engine.submit(prompt_of(len(more) + 20, 5), 1000)))

        ears = listen(engine, 4, 20, meddles)
        await engine.drained()
        assert all(ear.ends == 1 for ear in [*ears, *more])
        assert [ear.reason for ear in more] == ["stop"] * len(more)
        assert more

    house(depth).serve(visit)


def test_the_next_step_begins_before_tokens_are_handed_out() -> None:
    home = house(lengths={1: 20})
    order: list[str] = []
    execute = home.device.execute

    def noted(batch: Launch) -> StepResult:
        if batch.decode or batch.slices:
            order.append("step")
        return execute(batch)

    home.device.execute = noted  # type: ignore[method-assign]

    async def visit(engine: Engine) -> None:
        listen(engine, 1, 3, lambda ear: order.append("token"))
        await engine.drained()

    home.serve(visit)
    assert order == ["step", *(["step", "token"] * 19), "token"]


class LateClock(RealClock):
    """Every look at it costs 3 ms, so that each part of a hand-out takes too long."""

    looks = 0

    def now_ns(self) -> int:
        self.looks += 1
        return super().now_ns() + 3_000_000 * self.looks


def crowded() -> tuple[House, int]:
    count = 3 * PER_LOOK
    home = house(running_limit=count, token_budget=4 * count, memory={"pages": 4000, "page_size": 4, "host_pages": 0})
    home.clock = LateClock()
    return home, count


def test_others_have_their_turn_while_many_tokens_are_handed_out() -> None:
    home, count = crowded()
    turns = 0
    seen: dict[int, set[int]] = {}

    async def visit(engine: Engine) -> None:
        async def beside() -> None:
            nonlocal turns
            while True:
                turns += 1
                await anyio.lowlevel.checkpoint()

        def note(ear: Ear) -> None:
            seen.setdefault(len(ear.heard_so_far), set()).add(turns)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(beside)
            ears = listen(engine, count, 4, note)
            await engine.drained()
            tasks.cancel_scope.cancel()
        for id, ear in enumerate(ears, 1):
            assert ear.heard_so_far == answer_of(id, 4, 4)

    home.serve(visit)
    assert all(len(each) >= 3 for each in seen.values())


def test_whoever_ended_before_the_engine_broke_down_has_its_answer() -> None:
    """The step after the last token of the first fails for good, before that token was handed out."""
    home, count = crowded()
    home.device.breaks_at = 5
    home.device._lengths = {1: 4, **dict.fromkeys(range(2, count + 1), 9)}

    async def visit(engine: Engine) -> None:
        short = Ear(engine.submit(prompt_of(1, 4), 1000))
        ears = [Ear(engine.submit(prompt_of(id, 4), 1000)) for id in range(2, count + 1)]
        await engine.drained()
        assert (short.reason, short.heard_so_far) == ("stop", answer_of(1, 4, 4))
        assert {ear.reason for ear in ears} == {"the engine stopped: RuntimeError: the driver is gone"}
        assert {len(ear.heard_so_far) for ear in ears} == {4}

    assert home.serve(visit).failed


@DEPTHS
def test_nobody_hears_a_token_after_its_end(depth: int) -> None:
    """Steps that end at once: one batch of events then holds several of them."""

    async def visit(engine: Engine) -> None:
        ears = [Ear(engine.submit(prompt_of(id, 2 + id % 5), 1000)) for id in range(1, 30)]
        await engine.drained()
        for id, ear in enumerate(ears, 1):
            assert ear.heard_so_far == answer_of(id, 2 + id % 5, 2 + id % 5)

    home = house(depth, running_limit=29, token_budget=256)
    home.device._cost = Instant()
    home.serve(visit)


class Instant:
    """No step takes any time."""

    def step_ns(self, shape: object) -> int:
        return 0

    def run_ns(self, shape: object, start_ns: int, steps: int, until_ns: int) -> list[int]:
        return [start_ns] * steps
