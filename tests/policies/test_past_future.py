"""``past-future``: whoever is taken in need not give way, and the pool is still used."""

from __future__ import annotations

import pytest

from stepwell.core.limits import SchedulerLimits
from stepwell.policies.past_future import peak
from stepwell.sim.workload.request import TraceRequest
from stepwell.tests.helpers.runs import Pool
from stepwell.tests.policies.playing import ORACLE, play

LIMITS = SchedulerLimits(running_limit=64, token_budget=512)
REQUESTS = [TraceRequest(20 * k, 16 + k * 7 % 40, 20 + k * 37 % 160) for k in range(120)]


@pytest.mark.parametrize(
    ("batch", "most"),
    [
        ([(-5, 10)], 15),
        ([(-5, 10), (-2, 20)], 34),  # both with 2 more: 10 + 20 + 2 × 2; alone at its end the first holds 15
        ([(-30, 10), (-1, 20)], 40),
    ],
)
def test_the_peak_by_hand(batch: list[tuple[int, int]], most: int) -> None:
    assert peak(batch) == most


def test_with_true_lengths_nobody_gives_way_and_time_is_not_lost() -> None:
    """The published property: no evictions, where fcfs has many, in about the same time."""
    pool = Pool(80, 16, 0)
    runs = {name: play(name, REQUESTS, options, limits=LIMITS, pool=pool) for name, options in CASES.items()}
    evicted = {name: sum(len(it.preemptions) for it in run.stories.values()) for name, run in runs.items()}
    ended = {name: max(it.end_ns for it in run.stories.values()) for name, run in runs.items()}
    assert evicted["fcfs"] > 20
    assert evicted["past-future"] == 0
    assert ended["past-future"] < 1.1 * ended["fcfs"]


CASES: dict[str, dict[str, object]] = {"fcfs": {}, "past-future": ORACLE}
