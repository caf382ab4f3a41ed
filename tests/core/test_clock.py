"""Clocks: virtual time is exact, jumps only when everybody waits, and never hangs on what could go on."""

from __future__ import annotations

import asyncio
import random
import threading

import anyio
import anyio.to_thread
import pytest

from stepwell.core.clock import Clock, RealClock, VirtualClock, run_virtual


def test_virtual_time_is_exact_to_the_nanosecond() -> None:
    times = [1, 2, 86_400, 86_401, 10**9 + 1, 3 * 10**9 + 7, 3_600 * 10**9 + 1, 100 * 86_400 * 10**9 + 3]

    async def main() -> list[int]:
        clock = VirtualClock()
        assert clock.now_ns() == 0
        woken = []
        for at_ns in times:
            await clock.sleep_until(at_ns)
            woken.append(clock.now_ns())
        return woken

    assert run_virtual(main) == times


def test_a_sleep_is_one_jump_however_long() -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        looks = 0

        def look() -> None:
            nonlocal looks
            looks += 1

        clock = VirtualClock()
        select = loop.jumping.select  # type: ignore[attr-defined]

        def counting(timeout: float | None = None) -> object:
            look()
            return select(timeout)

        loop.jumping.select = counting  # type: ignore[attr-defined]
        await clock.sleep_until(1_000 * 10**9)
        return looks

    assert run_virtual(main) < 10


def test_many_tasks_wake_in_order_and_on_time() -> None:
    draw = random.Random(1)
    times = [draw.randint(0, 3_000) for _ in range(2_000)]
    woken: list[tuple[int, int]] = []

    async def sleeper(clock: VirtualClock, index: int) -> None:
        await clock.sleep_until(times[index])
        assert clock.now_ns() == times[index]
        woken.append((times[index], index))

    async def main() -> None:
        clock = VirtualClock()
        async with anyio.create_task_group() as tasks:
            for index in range(len(times)):
                tasks.start_soon(sleeper, clock, index)

    run_virtual(main)
    assert woken == sorted(woken)


def test_whoever_settles_comes_last_in_the_instant() -> None:
    told: list[str] = []

    async def settler(clock: VirtualClock) -> None:
        for at_ns in (5, 9):
            await clock.sleep_until(at_ns)
            await clock.settle()
            told.append(f"settled {clock.now_ns()}")

    async def worker(clock: VirtualClock, name: str, hops: int) -> None:
        await clock.sleep_until(5)
        for _ in range(hops):
            await anyio.lowlevel.checkpoint()
            await clock.sleep_until(3)  # past: at once
        told.append(f"{name} {clock.now_ns()}")

    async def main() -> None:
        clock = VirtualClock()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(settler, clock)
            tasks.start_soon(worker, clock, "a", 1)
            tasks.start_soon(worker, clock, "b", 30)

    run_virtual(main)
    assert told == ["a 5", "b 5", "settled 5", "settled 9"]


def test_the_past_is_at_once_and_yields() -> None:
    async def main(clock: Clock) -> None:
        others = 0

        async def other() -> None:
            nonlocal others
            others += 1

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(other)
            before_ns = clock.now_ns()
            for _ in range(3):
                await clock.sleep_until(before_ns - 10)
            assert others == 3

    run_virtual(main, VirtualClock())
    anyio.run(main, RealClock())


def test_a_cancelled_sleeper_holds_nothing_up() -> None:
    async def main() -> int:
        clock = VirtualClock()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(clock.sleep_until, 10**15)
            tasks.start_soon(clock.settle)
            await clock.sleep_until(50)
            tasks.cancel_scope.cancel()
        await clock.sleep_until(60)
        assert clock.now_ns() == 60
        with anyio.move_on_after(2.5):  # seconds, as everywhere in asyncio
            await clock.sleep_until(10**15)
        return clock.now_ns()

    assert run_virtual(main) == 60 + 2_500_000_000


def test_seconds_of_the_loop_are_the_same_time() -> None:
    async def main() -> tuple[int, float]:
        await anyio.sleep(3600.5)
        await VirtualClock().sleep_until(3_600_500_000_001)
        return VirtualClock().now_ns(), asyncio.get_running_loop().time()

    now_ns, now_s = run_virtual(main)
    assert now_ns == 3_600_500_000_001
    assert now_s == pytest.approx(3600.500000001, abs=1e-9)


def test_when_only_a_thread_can_go_on_it_is_waited_for() -> None:
    async def main() -> tuple[str, int]:
        clock = VirtualClock()
        with anyio.move_on_after(7e-9):
            await clock.sleep_until(10**15)  # nobody sleeps any more, so time does not go there
        gate = threading.Event()
        threading.Timer(0.01, gate.set).start()
        assert await anyio.to_thread.run_sync(gate.wait, 30)
        return "done", clock.now_ns()

    assert run_virtual(main) == ("done", 7)


def test_what_main_raises_comes_out() -> None:
    async def main() -> None:
        await VirtualClock().sleep_until(5)
        raise KeyError("here")

    with pytest.raises(KeyError, match="here"):
        run_virtual(main)


def test_the_real_clock_never_wakes_anybody_early() -> None:
    async def main() -> None:
        clock = RealClock()
        for delay_ns in (1, 1_000, 300_000, 2_345_678):
            at_ns = clock.now_ns() + delay_ns
            await clock.sleep_until(at_ns)
            assert clock.now_ns() >= at_ns
        before_ns = clock.now_ns()
        await clock.settle()
        assert clock.now_ns() >= before_ns

    anyio.run(main)
