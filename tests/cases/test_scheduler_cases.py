"""Trouble that others had with queues, classes and pools (SC-1, SC-3, SC-5, SC-7)."""

from __future__ import annotations

import random
import statistics

import pytest

from stepwell.core.events import Cancel, StepDone, Submitted
from stepwell.core.instructions import Finished, Rejected
from stepwell.core.limits import SchedulerLimits
from stepwell.core.protocols import BatchShape
from stepwell.core.types import FOREVER, NS_PER_S
from stepwell.sim.cost.linear import Linear
from stepwell.sim.workload.request import TraceRequest
from stepwell.tests.helpers.effort import CountingId, effort
from stepwell.tests.helpers.runs import POLICIES, Pool, assert_empty, build, simulate
from stepwell.tests.helpers.steps import STEP_NS, Device

# ------------------------------------------------------------------------------------------------ SC-1

SMALL = [TraceRequest(0, 5 + k, 5) for k in range(10)]
POOL_320 = Pool(20, 16)
CONTEXT_1024 = SchedulerLimits(token_budget=64, running_limit=16, max_context=1024)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_sc_1_a_prompt_that_can_never_fit_is_refused_at_once(policy: str) -> None:
    """400 of 320 positions: refused on arrival, naming the limit; those behind it run as if it had not come."""
    device = Device(build(policy, pool=POOL_320, limits=CONTEXT_1024))
    assert device.send([Submitted(1, 400, 10)]) == [Rejected(1, "prompt_too_long", 319)]
    scheduler = build(policy, pool=POOL_320, limits=CONTEXT_1024)
    run = simulate(scheduler, [TraceRequest(0, 400, 10), *SMALL], max_tokens=10)
    alone = simulate(build(policy, pool=POOL_320, limits=CONTEXT_1024), SMALL, max_tokens=10)
    assert [run.stories[id + 1].outcome() for id in alone.stories] == [it.outcome() for it in alone.stories.values()]


@pytest.mark.parametrize("behind", [True, False])
@pytest.mark.parametrize("max_tokens", [100, FOREVER])
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_sc_1_a_request_that_outgrows_the_pool_ends_there_with_length(
    policy: str, max_tokens: int, behind: bool
) -> None:
    """300 in, 100 out or more: clamped to 320 together, and never preempted by itself."""
    big = TraceRequest(0, 300, 500)
    requests = [big, *SMALL] if behind else [*SMALL, big]
    run = simulate(build(policy, pool=POOL_320, limits=CONTEXT_1024), requests, max_tokens=max_tokens)
    story = run.stories[1 if behind else 11]
    assert story.positions == list(range(300, 320))
    assert story.reason == "length"
    assert not story.preemptions
    others = [it for it in run.stories.values() if it is not story]
    assert [it.reason for it in others] == ["stop"] * 10
    assert all(len(it.token_ns) == 5 and not it.preemptions for it in others)


# ------------------------------------------------------------------------------------------------ SC-3

COST = Linear()
HOUSE = Pool(1024, 16, 1024)
TWO_SEATS = SchedulerLimits(running_limit=2)


def idle_ttft_ns(chat: TraceRequest) -> int:
    return simulate(build("chat-batch", pool=HOUSE, limits=TWO_SEATS), [chat], cost=COST).stories[1].token_ns[0]


def test_sc_3_chat_does_not_queue_behind_a_full_house_of_batch() -> None:
    """Two batch jobs hold both seats; a chat request has its first token within one step and its own prefill."""
    chat = TraceRequest(5 * NS_PER_S + 1_234_567, 200, 20)
    jobs = [TraceRequest(0, 2000, 2000, "batch"), TraceRequest(0, 2000, 2000, "batch")]
    run = simulate(build("chat-batch", pool=HOUSE, limits=TWO_SEATS), [*jobs, chat], cost=COST)
    step_ns = COST.step_ns(BatchShape(decode_requests=2, kv_tokens=8000))
    copies_ns = COST.options.swap_page_ns * 4000 // 16
    mixed_ns = step_ns - COST.options.base_ns
    ttft_ns = run.stories[3].token_ns[0] - chat.arrival_ns
    assert ttft_ns <= step_ns + (idle_ttft_ns(TraceRequest(0, 200, 20)) + copies_ns + mixed_ns)
    assert [it.beneficiary for _, it in run.stories[2].preemptions] == [3]
    assert not run.stories[1].preemptions
    for id in (1, 2):
        assert run.stories[id].positions == list(range(2000, 4000))


@pytest.mark.parametrize(("aging_s", "times"), [(600.0, 1.5), (30.0, 2.0)])
def test_sc_3_chat_is_as_quick_beside_thirty_batch_jobs_as_alone(aging_s: float, times: float) -> None:
    """While batch is young, and while it ages: no more than one of them at a time then ranks as chat."""
    jobs = [TraceRequest(0, 500, 1500, "batch") for _ in range(30)]
    chats = [TraceRequest(second * NS_PER_S + 137_777_777 * second % NS_PER_S, 1000, 20) for second in range(1, 61)]
    limits = SchedulerLimits(running_limit=2)
    scheduler = build("chat-batch", pool=HOUSE, limits=limits, options={"aging_s": aging_s})
    run = simulate(scheduler, [*jobs, *chats], cost=COST)
    stories = list(run.stories.values())
    ttfts = sorted(it.token_ns[0] - it.arrival_ns for it in stories[30:])
    p95_ns = ttfts[56]
    assert p95_ns <= times * idle_ttft_ns(TraceRequest(0, 1000, 20))
    preemptions = [(id, it) for id, story in run.stories.items() for _, it in story.preemptions]
    assert len(preemptions) > 30
    # Only batch gives way, and only to chat; it keeps its work.
    assert all(id <= 30 < it.beneficiary and it.mode == "swap" for id, it in preemptions)
    assert all(it.positions == list(range(500, 2000)) for it in stories[:30])


def test_sc_3_chat_does_not_wait_for_the_prefill_of_a_batch_job() -> None:
    """A batch prompt of ten chunks spends every step's budget; chat comes before what is left of it."""
    chat = TraceRequest(70_000_001, 200, 20)
    job = TraceRequest(0, 20_000, 10, "batch")
    run = simulate(build("chat-batch", pool=Pool(4096, 16), limits=SchedulerLimits()), [job, chat], cost=COST)
    chunk_ns = COST.step_ns(BatchShape(prefill_tokens=2048, prefill_requests=2, kv_tokens=20_000))
    ttft_ns = run.stories[2].token_ns[0] - chat.arrival_ns
    assert ttft_ns <= 2 * chunk_ns
    assert run.stories[2].token_ns[0] < run.stories[1].token_ns[0]
    assert not run.stories[1].preemptions


# ------------------------------------------------------------------------------------------------ SC-5


def busy_house(policy: str, waiting: int) -> Device:
    """64 run and decode, so many wait, in mixed classes; the policy is asked before every step."""
    limits = SchedulerLimits(running_limit=64, token_budget=4096, max_waiting=0)
    options: dict[str, object] = {"batch_size": 64} if policy == "static" else {}
    scheduler = build(policy, pool=Pool(8192, 16), limits=limits, options=options, honour_repeats=False)
    device = Device(scheduler)
    count = 64 + waiting
    klass = ("chat", "batch")
    events = [Submitted(CountingId(id), 30, 900, klass[id > 64 and id % 3 == 0]) for id in range(1, count + 1)]
    device.send(events)
    device.run(5)
    assert len(scheduler.state.group.members) == 64
    assert len(scheduler.state.waiting) == waiting
    return device


def step(device: Device) -> None:
    """One step, without the observer (which walks the group on purpose)."""
    device.now_ns += STEP_NS
    device.scheduler.handle(device.now_ns, [StepDone(device.step)])
    device.step += 1


@pytest.mark.parametrize("policy", ["fcfs", "chat-batch", "static"])
def test_sc_5_a_step_costs_the_same_whoever_waits(policy: str) -> None:
    medians = {}
    for waiting in (50, 5_000, 50_000):
        device = busy_house(policy, waiting)
        medians[waiting] = statistics.median(effort(lambda: step(device)) for _ in range(100))  # noqa: B023
    assert medians[50] > 10, "nothing was counted"
    assert medians[5_000] <= 2 * medians[50]
    assert medians[50_000] <= 2 * medians[50]


@pytest.mark.parametrize("policy", ["fcfs", "chat-batch"])
def test_sc_5_a_change_costs_the_logarithm_of_who_waits(policy: str) -> None:
    """An arrival and a finish in a step; and aborts of random waiting requests."""
    changes, aborts = {}, {}
    for waiting, left in ((1_000, 200), (50_000, 10_000)):
        device = busy_house(policy, waiting)
        state, rng = device.scheduler.state, random.Random(1)
        costs = []
        for turn in range(50):
            arrival = Submitted(CountingId(64 + waiting + turn + 1), 30, 900)
            gone = Cancel(next(iter(state.group.members)))
            device.now_ns += 1
            costs.append(effort(lambda: device.scheduler.handle(device.now_ns, [gone, arrival])))  # noqa: B023
            costs[-1] += effort(lambda: step(device))  # noqa: B023
        changes[waiting] = statistics.median(costs)
        leaving = rng.sample(sorted(state.waiting), left)
        events = [Cancel(id) for id in leaving]
        aborts[waiting] = effort(lambda: device.scheduler.handle(device.now_ns, events)) / left  # noqa: B023
    assert changes[1_000] > 50, "nothing was counted"
    assert changes[50_000] <= 2 * changes[1_000]
    assert aborts[50_000] <= 2 * aborts[1_000]


# ------------------------------------------------------------------------------------------------ SC-7


def refusals(device: Device, events: list[Submitted]) -> dict[str, int]:
    """Submits at one time; how many were refused by which limit."""
    codes: dict[str, int] = {}
    for it in device.send(events):
        if isinstance(it, Rejected):
            codes[it.code] = codes.get(it.code, 0) + 1
    return codes


def test_sc_7_what_exceeds_the_queue_is_refused_and_the_rest_finishes() -> None:
    device = Device(build(pool=Pool(512, 16), limits=SchedulerLimits(max_waiting=100, max_waiting_tokens=50_000)))
    assert refusals(device, [Submitted(id, 100, 10) for id in range(1, 1001)]) == {"queue_full": 900}
    device.run()
    ended = [story.reason for story in device.timeline.stories.values()]
    assert (ended.count("length"), ended.count("rejected")) == (100, 900)
    assert_empty(device.scheduler)
    assert (device.scheduler.state.backlog.requests, device.scheduler.state.backlog.tokens) == (0, 0)


def test_sc_7_prompt_tokens_are_limited_too() -> None:
    device = Device(build(pool=Pool(4096, 16), limits=SchedulerLimits(max_waiting=100, max_waiting_tokens=50_000)))
    assert refusals(device, [Submitted(id, 1000, 10) for id in range(1, 1001)]) == {"queue_tokens_full": 950}
    assert len(device.scheduler.state.requests) == 50
    device.run()
    assert_empty(device.scheduler)


def test_sc_7_batch_traffic_leaves_chat_its_share() -> None:
    device = Device(build(limits=SchedulerLimits(max_waiting=100)))
    batch = [Submitted(id, 10, 10, "batch") for id in range(1, 201)]
    chat = [Submitted(id, 10, 10, "chat") for id in range(201, 221)]
    # 90 of 100 places are open to batch; ten are left to chat.
    assert refusals(device, [*batch, *chat]) == {"class_queue_full": 110, "queue_full": 10}


def test_sc_7_batch_traffic_leaves_chat_its_share_of_tokens_too() -> None:
    """Few and long: 90 of 100 thousand prompt tokens are open to batch; what starts or leaves makes room again."""
    device = Device(build(pool=Pool(4096, 16), limits=SchedulerLimits(max_waiting=0, max_waiting_tokens=100_000)))
    batch = [Submitted(id, 10_000, 10, "batch") for id in range(1, 13)]
    chat = [Submitted(id, 5_000, 10, "chat") for id in range(21, 25)]
    assert refusals(device, [*batch, *chat]) == {"class_queue_tokens_full": 3, "queue_tokens_full": 2}
    assert device.scheduler.state.backlog.ahead(0) == (2, 10_000)
    assert device.scheduler.state.backlog.ahead(1) == (10, 90_000)  # the first one runs
    device.run()
    assert_empty(device.scheduler)
    assert device.scheduler.state.backlog.ahead(1) == (0, 0)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_sc_7_expired_and_abandoned_requests_are_dropped_before_prefill(policy: str) -> None:
    deadline_ns = 10 * NS_PER_S
    device = Device(build(policy, limits=SchedulerLimits(running_limit=1, token_budget=32)))
    long = Submitted(1, 10, 1010)
    expiring = [Submitted(id, 10, 5, expires_ns=deadline_ns) for id in range(2, 12)]
    leaving = [Submitted(id, 10, 5) for id in range(12, 22)]
    patient = Submitted(22, 10, 5)
    device.send([long, *expiring, *leaving, patient])
    backlog = device.scheduler.state.backlog
    assert (backlog.requests, backlog.tokens) == (21, 210)
    device.run(500)
    gone = device.send([Cancel(id) for id in range(12, 22)])
    assert [(it.request, it.reason) for it in gone if isinstance(it, Finished)] == [
        (id, "cancelled") for id in range(12, 22)
    ]
    assert (backlog.requests, backlog.tokens) == (11, 110)
    device.run()
    stories = device.timeline.stories
    for id in range(2, 12):
        assert (stories[id].reason, stories[id].end_ns, stories[id].slices) == ("expired", deadline_ns, [])
    assert all(not stories[id].slices for id in range(12, 22))
    assert [len(stories[id].token_ns) for id in (1, 22)] == [1010, 5]
    assert (backlog.requests, backlog.tokens) == (0, 0)
    assert_empty(device.scheduler)
