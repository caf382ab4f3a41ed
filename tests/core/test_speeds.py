"""What the scheduler learns of the device's speed: from events alone, the same in every shell, robust."""

from __future__ import annotations

import pytest

from stepwell.core.events import StepDone, Submitted
from stepwell.core.limits import SchedulerLimits
from stepwell.core.scheduler import Scheduler
from stepwell.core.snapshot import capture, restore
from stepwell.core.speeds import BELIEVED, KEPT, TOKEN_PS, Speeds
from stepwell.sim.cost.linear import Linear
from stepwell.sim.workload.request import TraceRequest
from stepwell.tests.helpers.runs import Pool, build, simulate

CROWDED = [TraceRequest(2_000_000 * k, 60 + k * 97 % 300, 40 + k * 61 % 160) for k in range(60)]
POOL = Pool(120, 16, 400)
COST = Linear.Options(prefill_token_ns=40_000, swap_page_ns=70_000)


def crowded(*, jumps: bool = True, honour_repeats: bool = True) -> Scheduler:
    """After a run with many swaps."""
    limits = SchedulerLimits(token_budget=256, running_limit=32)
    scheduler = build("swap", pool=POOL, limits=limits, honour_repeats=honour_repeats)
    run = simulate(scheduler, CROWDED, cost=COST, jumps=jumps)
    assert sum(len(story.preemptions) for story in run.stories.values()) > 10
    return scheduler


def test_speeds_are_those_of_the_device() -> None:
    speeds = crowded().state.speeds
    assert speeds.page_ns == COST.swap_page_ns
    assert speeds.token_ps / 1000 == pytest.approx(COST.prefill_token_ns, rel=0.25)  # contexts differ between steps


def test_with_and_without_repeats_and_jumps_the_same_is_learnt() -> None:
    learnt = crowded().state.speeds.dump()
    assert crowded(jumps=False).state.speeds.dump() == learnt
    assert crowded(jumps=False, honour_repeats=False).state.speeds.dump() == learnt


def test_before_anything_was_measured_copying_is_taken_to_be_cheap() -> None:
    speeds = Speeds(page_size=16)
    assert (speeds.token_ps, speeds.page_ns) == (TOKEN_PS, 2 * TOKEN_PS // 1000)
    speeds.learn(100, 0, False, 500_000, 0)
    assert (speeds.token_ps, speeds.page_ns) == (5_000_000, 10_000)


def test_the_first_copies_are_not_believed_and_one_slow_step_moves_nothing() -> None:
    speeds = Speeds(page_size=16)
    speeds.learn(0, 4, True, 9_000_000, 8_000_000)
    assert speeds.page_ns == 2 * TOKEN_PS // 1000
    for _ in range(BELIEVED):
        speeds.learn(0, 4, True, 300, 40)
    assert speeds.page_ns == 10
    for _ in range(KEPT):
        speeds.learn(100, 0, False, 1_000, 0)
    speeds.learn(100, 0, False, 9_000_000, 0)
    assert speeds.token_ps == 10_000


def test_the_time_of_a_mixed_step_is_shared_out() -> None:
    """50 ns to decode, 30 ns to copy 3 pages, so 20 ns for 10 prompt tokens."""
    speeds = Speeds(page_size=16)
    speeds.learn(0, 0, True, 50, 0)
    for _ in range(BELIEVED):
        speeds.learn(10, 3, True, 100, 30)
    assert (speeds.decode_ns, speeds.token_ps, speeds.page_ns) == (50, 2_000, 10)


@pytest.mark.parametrize(("elapsed_ns", "copy_ns"), [(0, 0), (100, 0)], ids=["nothing measured", "copies not"])
def test_what_was_not_measured_teaches_nothing(elapsed_ns: int, copy_ns: int) -> None:
    speeds = Speeds(page_size=16)
    speeds.learn(10, 3, True, elapsed_ns, copy_ns)
    assert speeds.dump() == Speeds(page_size=16).dump()


def test_a_snapshot_carries_speeds_and_what_the_step_in_flight_holds() -> None:
    scheduler, again = build("fcfs"), build("fcfs")
    scheduler.handle(0, [Submitted(1, 40, 9), Submitted(2, 20, 9)])
    scheduler.handle(600, [StepDone(1, [], 600)])
    scheduler.handle(700, [Submitted(3, 30, 9)])
    scheduler.handle(800, [StepDone(2, [], 200)])
    restore(again, capture(scheduler))
    for each in (scheduler, again):
        each.handle(1_000, [StepDone(3, [], 500)])
    assert again.state.speeds.dump() == scheduler.state.speeds.dump() == [200, [10_000, 10_000], []]
