"""``past-future``: whoever is taken in need not give way, and the pool is still used."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given, settings

from stepwell.core import registry
from stepwell.core.limits import SchedulerLimits
from stepwell.core.protocols import PolicyEvent, RequestView, SchedulerPolicy, SchedulerView
from stepwell.core.testing_play import REBUILD, Play, Scenario, scenarios
from stepwell.policies.peak import peak
from stepwell.policies.work import Guesses
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


class CountedAnew:
    """What ``Peak`` says, from everybody who runs, each time."""

    def __init__(self, guesses: Guesses) -> None:
        self.guesses = guesses
        self.taken: list[RequestView] = []

    def observe(self, event: PolicyEvent) -> None: ...

    def begin(self, view: SchedulerView) -> None:
        self.taken = []

    def with_one_more(self, view: SchedulerView, request: RequestView, room: int) -> int:
        self.taken.append(request)
        batch = [*view.decoding.values(), *view.loose.values(), *self.taken]
        return peak(sorted((-self.guesses.left(each), each.known + view.page_size - 1) for each in batch))

    def without(self) -> None:
        self.taken.pop()


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(scenarios(("paged", "contiguous")))
def test_the_peak_that_is_kept_is_the_one_counted_anew(scenario: Scenario) -> None:
    """Short of everything, with failed steps, policies made anew, and up to three steps in flight."""

    def policy(anew: bool) -> SchedulerPolicy:
        made: Any = registry.make_policy("past-future", {"predictor_options": {"first": 4, "window": 3}})
        if anew:
            made.peak = CountedAnew(made.guesses)
        return cast(SchedulerPolicy, made)

    kept = Play(scenario, lambda scheduler: policy(anew=False), rebuilds=REBUILD).run()
    assert kept == Play(scenario, lambda scheduler: policy(anew=True), rebuilds=REBUILD).run()
