"""Trouble that others had with simulators under memory pressure (SI-3)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stepwell.core import registry
from stepwell.core.events import Event
from stepwell.core.instructions import Instruction
from stepwell.core.limits import SchedulerLimits
from stepwell.core.types import NS_PER_S
from stepwell.sim.cost.linear import Linear
from stepwell.sim.loop import Simulator
from stepwell.sim.workload.request import TraceRequest
from stepwell.tests.helpers.runs import Pool, assert_empty, build, simulate
from stepwell.tests.helpers.timeline import Timeline

COST = Linear()

POLICIES = registry.names("policies")
QUICK = {"chat-batch", "fcfs", "static", "swap"}
SELDOM = {"past-future", "static"}
"""Hardly anybody gives way under these."""
TURNS = {"mlfq"}
"""Whoever runs gives way to others whatever the memory; then the core's own limit holds."""

every = pytest.mark.parametrize("policy", POLICIES)


@pytest.mark.parametrize(
    "policy", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in POLICIES]
)
def test_si_3_ten_times_the_capacity_ends_after_bounded_work(policy: str) -> None:
    """125 pages, 2,000 requests of 256 in and 256 out: about four at once, so some 2.3 a second."""
    requests = [TraceRequest(k * NS_PER_S // 23, 256, 256) for k in range(2000)]
    limits = SchedulerLimits()
    scheduler = build(registry.make_policy(policy), pool=Pool(125, 16, 60), limits=limits)
    run, turns = Timeline(), 0

    def count(now_ns: int, events: Sequence[Event], out: Sequence[Instruction]) -> None:
        nonlocal turns
        turns += 1

    simulator = Simulator(scheduler, COST, requests, observers=[run, count])
    simulator.run()
    assert_empty(scheduler)
    assert simulator.now_ns > 10 * requests[-1].arrival_ns * 0.8, "the load is not what it should be"
    assert all(len(story.token_ns) == 256 for story in run.stories.values())
    per_request = [len(story.preemptions) for story in run.stories.values()]
    if policy not in SELDOM:
        assert sum(per_request) > 1000
    assert max(per_request) <= (limits.max_preemptions if policy in TURNS else 4)
    tokens = sum(request.prompt_tokens + request.output_tokens for request in requests)
    assert turns <= run.launches + 2 * len(requests)
    assert run.launches <= tokens
    # The recompute tax is bounded as well: nobody is computed twice on average, or once more for each turn that ends.
    assert run.computed <= tokens * (1 + limits.max_preemptions if policy in TURNS else 2)


@every
def test_si_3_a_pool_smaller_than_a_request_refuses_it(policy: str) -> None:
    requests = [TraceRequest(k, 256, 256) for k in range(50)]
    run = simulate(build(registry.make_policy(policy), pool=Pool(16, 16)), requests, cost=COST)
    assert {story.reason for story in run.stories.values()} == {"rejected"}
    assert run.launches == 0


@every
def test_si_3_a_pool_smaller_than_an_answer_cuts_it(policy: str) -> None:
    """320 positions: 64 of the 256 output tokens fit."""
    requests = [TraceRequest(k, 256, 256) for k in range(50)]
    run = simulate(build(registry.make_policy(policy), pool=Pool(20, 16)), requests, cost=COST)
    assert {(story.reason, len(story.token_ns)) for story in run.stories.values()} == {("length", 64)}
    if policy not in TURNS:
        assert not any(story.preemptions for story in run.stories.values())
