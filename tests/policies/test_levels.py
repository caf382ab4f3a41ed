"""Levels keep who runs where it is without looking at everybody: what they say is what looking at everybody says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from stepwell.core import registry
from stepwell.core.plan import StepPlan
from stepwell.core.protocols import PolicyEvent, SchedulerView
from stepwell.core.testing_play import REBUILD, Play, Scenario, scenarios
from stepwell.sim.workload.request import TraceRequest
from stepwell.tests.core.shells import Case, simulated

FEW: dict[str, dict[str, object]] = {
    "mlfq": {"quantum": 2, "levels": 12, "output_cost": 1, "aging_s": 4e-7},
    "plas": {"quantum": 8, "levels": 12, "output_cost": 4, "aging_s": 4e-7},
}
"""Quanta so small that somebody sinks every few steps."""


class Compared:
    """``name``; in each plan everybody who runs is ranked, to compare."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.policy: Any = registry.make_policy(name, FEW[name])
        self.promises = self.policy.promises

    def observe(self, event: PolicyEvent) -> None:
        self.policy.observe(event)

    def plan(self, view: SchedulerView) -> StepPlan:
        plan: StepPlan = self.policy.plan(view)
        rank, now_ns = self.policy.levels.queue.rank, view.now_ns
        ranked = [rank(each, now_ns) for each in (*view.decoding.values(), *view.loose.values())]
        told = [(level, each.id) for level, each in self.policy.levels.worst_first(now_ns)]
        live = {id for _, id in ranked}
        assert [each for each in told if each[1] in live] == sorted([key for key in ranked if key[0]], reverse=True)
        return plan


@pytest.mark.parametrize("name", FEW)
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(scenario=scenarios(("paged", "contiguous")))
def test_who_runs_is_where_ranking_everybody_puts_them(name: str, scenario: Scenario) -> None:
    """Short of everything, with failed steps, policies made anew, and up to three steps in flight."""
    Play(scenario, lambda scheduler: Compared(name), rebuilds=REBUILD).run()


@pytest.mark.parametrize("name", sorted(FEW))
def test_nobody_whose_last_token_is_in_flight_gives_way(name: str) -> None:
    """With two steps in flight: it still has its seat, and is not there any more to be sent away."""
    requests = tuple(TraceRequest(arrival_ns=0, prompt_tokens=1, output_tokens=1) for _ in range(2))
    scheduler = {"token_budget": 1, "running_limit": 1, "depth": 2}
    case = Case(requests, name, scheduler=scheduler, memory={"page_size": 1, "pages": 4}, max_tokens=1)
    assert len(simulated(case).ends) == 2
