"""Trouble that others had with preemption (PR-1, PR-3), at the level of counts: the core never sees a token."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stepwell.core import registry
from stepwell.core.errors import PolicyError
from stepwell.core.events import Event
from stepwell.core.instructions import Admitted, Instruction, Preempted, Resumed
from stepwell.core.limits import MAX_SILENT_STEPS, SchedulerLimits
from stepwell.core.plan import Preemption, StepPlan
from stepwell.core.protocols import PolicyEvent, Promises, SchedulerView
from stepwell.core.scheduler import Scheduler
from stepwell.core.types import PreemptMode
from stepwell.policies.toolkit import OrderedLine, by_arrival
from stepwell.sim.cost.linear import Linear
from stepwell.sim.loop import Simulator
from stepwell.sim.workload.request import TraceRequest
from stepwell.tests.helpers.runs import ROUND, Pool, assert_empty, build, simulate
from stepwell.tests.helpers.scripted import Scripted, computed, outputs
from stepwell.tests.helpers.timeline import Timeline

MODES: list[PreemptMode] = ["recompute", "swap"]


@pytest.mark.parametrize("company", [0, 3])
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("mode", MODES)
def test_pr_1_a_preempted_request_goes_on_where_it_was(mode: PreemptMode, depth: int, company: int) -> None:
    """60 in, 80 out, preempted at outputs 1, 17, 17 again (between two chunks, or just copied back) and 79."""
    policy = Scripted([outputs(1), outputs(17), outputs(17), outputs(79)], mode)
    scheduler = build(policy, pool=Pool(64, 16, 64), limits=SchedulerLimits(token_budget=64, depth=depth))
    requests = [TraceRequest(0, 60, 80), *(TraceRequest(3, 7, 100) for _ in range(company))]
    run = simulate(scheduler, requests)
    assert not policy.moments
    story = run.stories[1]
    assert policy.prompts == {60}
    assert story.positions == list(range(60, 140))
    assert story.token_ns == sorted(story.token_ns)
    assert story.reason == "stop"
    assert len(story.preemptions) == 4
    assert {it.mode for _, it in story.preemptions} == {mode}
    if mode == "swap":
        assert len(story.admissions) == 1
        assert len(story.resumptions) == 4
    else:
        assert len(story.admissions) == 5
    for id in range(2, company + 2):
        assert run.stories[id].positions == list(range(7, 107))
        assert not run.stories[id].preemptions


class ResumeRule:
    """Whoever comes back gets room for its whole present length, and beside others leaves a spare page."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.most_preempted_at_once = 0

    def __call__(self, now_ns: int, events: Sequence[Event], out: Sequence[Instruction]) -> None:
        state = self.scheduler.state
        self.most_preempted_at_once = max(self.most_preempted_at_once, sum(isinstance(it, Preempted) for it in out))
        for it in out:
            if isinstance(it, Admitted | Resumed):
                room = len(state.allocator.table(it.request)) * state.allocator.page_size
                assert room >= state.requests[it.request].known - 1
                assert state.allocator.free_pages >= 1 or state.view.running == 1


@pytest.mark.parametrize("depth", [1, 2], ids=["at once", "a step late"])
@pytest.mark.parametrize("host_pages", [0, 1, 8, 16])
@pytest.mark.parametrize("policy", ["fcfs", "swap", "chat-batch", "cost-aware"])
@pytest.mark.parametrize("second", [150, 140])
def test_pr_3_two_requests_that_outgrow_the_pool_both_finish(
    second: int, policy: str, host_pages: int, depth: int
) -> None:
    """Pool 20 x 16, budget 64, 150 in and 100 out each.  With 150 the second must wait; with 140 it is admitted."""
    limits = SchedulerLimits(token_budget=64, running_limit=8, depth=depth)
    scheduler = build(registry.make_policy(policy), pool=Pool(20, 16, host_pages), limits=limits)
    rule, run = ResumeRule(scheduler), Timeline()
    requests = [TraceRequest(0, 150, 100), TraceRequest(0, second, 100)]
    Simulator(scheduler, Linear(ROUND), requests, observers=[run, rule]).run()
    assert_empty(scheduler)
    for id, prompt in ((1, 150), (2, second)):
        assert run.stories[id].positions == list(range(prompt, prompt + 100))
    modes = [it.mode for _, it in run.stories[2].preemptions]
    assert not run.stories[1].preemptions
    assert rule.most_preempted_at_once <= 1
    if second == 150:
        assert modes == []
    else:
        fits_in_host = policy != "fcfs" and host_pages == 16
        assert modes == (["swap"] if fits_in_host else ["recompute"])


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("host_pages", [0, 8, 40])
def test_pr_3_a_shortage_sends_no_more_than_it_must(host_pages: int, depth: int) -> None:
    """Pages of the victims come back late; the oldest request is never sent, and nobody is sent for ever."""
    limits = SchedulerLimits(token_budget=64, running_limit=8, depth=depth, max_preemptions=4)
    scheduler = build("swap", pool=Pool(20, 16, host_pages), limits=limits)
    rule, run = ResumeRule(scheduler), Timeline()
    requests = [TraceRequest(0, 31, 60) for _ in range(8)]
    Simulator(scheduler, Linear(ROUND), requests, observers=[run, rule]).run()
    assert_empty(scheduler)
    assert all(story.positions == list(range(31, 91)) for story in run.stories.values())
    assert not run.stories[1].preemptions
    assert rule.most_preempted_at_once <= 3
    assert all(len(story.preemptions) <= 2 for story in run.stories.values())


@pytest.mark.parametrize("mode", MODES)
def test_pr_3_endless_eviction_fails_loudly(mode: PreemptMode) -> None:
    """A policy that evicts the same request for ever meets the limit of preemptions, and the run stops."""
    policy = Scripted([computed(40)] * 1000, mode)
    limits = SchedulerLimits(token_budget=40, running_limit=4, max_preemptions=5)
    scheduler = build(policy, pool=Pool(20, 16, 20), limits=limits)
    with pytest.raises(PolicyError, match="preemption limit"):
        simulate(scheduler, [TraceRequest(0, 100, 10)])
    assert 1000 - len(policy.moments) == 6, "five preemptions, and the sixth is refused"


def test_pr_3_beside_a_protected_request_the_oldest_sits_out() -> None:
    """Pages of 8, ten of them.  The third is evicted once and may not be again: its greatest length, 5 pages, is
    reserved when it comes back.  The first then grows to 5 pages, and for its last token waits until the other is gone.
    """
    limits = SchedulerLimits(token_budget=64, running_limit=8, max_preemptions=1)
    requests = [TraceRequest(0, 17, 25), TraceRequest(0, 17, 9), TraceRequest(0, 15, 25)]
    run = simulate(build("fcfs", pool=Pool(10, 8), limits=limits), requests, max_tokens=25)
    first, second, third = run.stories.values()
    assert [len(story.preemptions) for story in (first, second, third)] == [0, 0, 1]
    assert len(third.admissions) == 2
    assert first.token_ns[23] < third.token_ns[23] < third.end_ns < first.token_ns[24]


class InCircles:
    """Admits the head with half of its prompt, sends it back, and so on for ever."""

    promises = Promises()

    def __init__(self) -> None:
        self.line = OrderedLine(by_arrival)

    def observe(self, event: PolicyEvent) -> None:
        self.line.observe(event)

    def plan(self, view: SchedulerView) -> StepPlan:
        self.line.start(view.now_ns)
        sent = [Preemption(request.id, "recompute", "again") for request in view.loose.values()]
        head = self.line.head()
        if sent or head is None:
            return StepPlan(preempt=sent, decode=False)
        return StepPlan(admit=[(head.id, head.pending // 2)], decode=False)


def test_pr_3_a_policy_that_runs_in_circles_fails_loudly() -> None:
    """Even where the limit of preemptions is off: so many steps without a token are a fault, with step and rule."""
    scheduler = build(InCircles(), pool=Pool(20, 16), limits=SchedulerLimits(max_preemptions=0))
    with pytest.raises(PolicyError, match=r"'progress'.*steps in a row sampled no token") as caught:
        simulate(scheduler, [TraceRequest(0, 64, 10)])
    assert caught.value.step > MAX_SILENT_STEPS
