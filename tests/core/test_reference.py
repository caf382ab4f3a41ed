"""The core against a deliberately naive scheduler (``tests/reference/naive.py``), to the nanosecond.

And the core against itself: jumps in time and repeated plans are only a faster way to say the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from stepwell.core.journal_encoder import JournalEncoder
from stepwell.core.limits import SchedulerLimits
from stepwell.core.types import FOREVER
from stepwell.sim.cost.linear import Linear
from stepwell.sim.cost.linear_options import LinearOptions
from stepwell.sim.workload.request import TraceRequest
from stepwell.tests.helpers.runs import POLICIES, Pool, build, simulate
from stepwell.tests.helpers.timeline import Timeline, step_by_step
from stepwell.tests.reference.naive import Naive

QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
LONG = settings(QUICK, max_examples=600)


@dataclass(frozen=True)
class Case:
    pool: Pool
    limits: SchedulerLimits
    cost: LinearOptions
    max_tokens: int
    requests: tuple[TraceRequest, ...]


def small(least: int, most: int) -> st.SearchStrategy[int]:
    return st.integers(least, most)


COSTS = st.builds(
    Linear.Options,
    base_ns=small(1, 20),
    prefill_token_ns=small(0, 3),
    prefill_request_ns=small(0, 3),
    decode_request_ns=small(0, 3),
    kv_token_ps=st.sampled_from([0, 1, 333, 1000, 1500]),
    swap_page_ns=small(0, 5),
)


def request(crowded: bool, longest: int, classes: tuple[str, ...]) -> st.SearchStrategy[TraceRequest]:
    """``arrival_ns`` is the gap to the request before it, ``cancel_ns`` how long the client stays; see ``in_time``."""
    half = longest // 2
    lengths = small(half, longest) if crowded else small(1, longest)
    return st.builds(
        TraceRequest,
        arrival_ns=small(0, 2) if crowded else st.one_of(st.just(0), small(0, 30), small(0, 300)),
        prompt_tokens=small(1, max(half, 1)) if crowded else lengths,
        output_tokens=lengths.map(lambda tokens: max(tokens, 1)),
        klass=st.sampled_from(classes),
        cancel_ns=st.one_of(st.just(-1), st.just(-1), st.just(-1), small(0, 400)),
    )


def in_time(requests: list[TraceRequest]) -> tuple[TraceRequest, ...]:
    now_ns = 0
    made = []
    for it in requests:
        now_ns += it.arrival_ns
        cancel_ns = now_ns + it.cancel_ns if it.cancel_ns >= 0 else 0
        made.append(TraceRequest(now_ns, it.prompt_tokens, it.output_tokens, it.klass, cancel_ns=cancel_ns))
    return tuple(made)


@st.composite
def cases(draw: st.DrawFn, classes: tuple[str, ...] = ("chat",)) -> Case:
    """Half of them crowded: a pool of one to three requests' size, and all arrive at once.  The others anything."""
    crowded = draw(st.booleans())
    page_size = draw(small(1, 16))
    longest = draw(small(8, 60) if crowded else small(2, 60))
    one = -(-longest // page_size)
    pages = draw(small(one, 3 * one) if crowded else small(one, 400))
    running_limit = draw(small(2, 16) if crowded else small(1, 16))
    limits = SchedulerLimits(
        token_budget=running_limit + draw(st.one_of(small(0, 8), small(0, 80))),
        running_limit=running_limit,
        max_preemptions=draw(st.sampled_from([1, 2, 3, 8, 0])),
    )
    longest = min(longest, pages * page_size - 1) or 1
    each = request(crowded, longest, classes)
    return Case(
        pool=Pool(pages, page_size, draw(st.one_of(st.just(0), small(0, 3 * one)))),
        limits=limits,
        cost=draw(COSTS),
        max_tokens=draw(st.one_of(st.just(FOREVER), small(1, longest))),
        requests=in_time(draw(st.lists(each, min_size=3 if crowded else 1, max_size=12))),
    )


def play(case: Case, policy: str, *, jumps: bool = True, honour_repeats: bool = True, keep: bool = False) -> Timeline:
    options: dict[str, object] = {}
    if policy == "chat-batch":
        options = {"aging_s": 150e-9}
    elif policy == "static":
        options = {"batch_size": 3}
    scheduler = build(policy, pool=case.pool, limits=case.limits, options=options, honour_repeats=honour_repeats)
    return simulate(scheduler, case.requests, cost=case.cost, max_tokens=case.max_tokens, jumps=jumps, keep=keep)


def compare_with_reference(case: Case, policy: str) -> None:
    naive = Naive(
        case.requests,
        case.limits,
        case.cost,
        pages=case.pool.pages,
        page_size=case.pool.page_size,
        host_pages=case.pool.host_pages,
        max_tokens=case.max_tokens,
        swap=policy == "swap",
    )
    expected = {job.id: (job.token_ns, job.end_ns, job.reason, job.preemptions) for job in naive.run()}
    preemptions = sum(outcome[3] for outcome in expected.values())
    event(f"preemptions: {'none' if not preemptions else '1-3' if preemptions < 4 else '4 or more'}")
    found = {id: story.outcome() for id, story in play(case, policy).stories.items()}
    assert found == expected


@pytest.mark.parametrize("policy", ["fcfs", "swap"])
@given(case=cases())
@QUICK
def test_core_equals_the_naive_reference(policy: str, case: Case) -> None:
    compare_with_reference(case, policy)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fcfs", "swap"])
@given(case=cases())
@LONG
def test_core_equals_the_naive_reference_at_length(policy: str, case: Case) -> None:
    compare_with_reference(case, policy)


def journal(run: Timeline) -> bytes:
    encoder = JournalEncoder()
    for turn in run.turns:
        encoder.turn(*turn)
    return encoder.take(flush=True)


def compare_ways(case: Case, policy: str) -> None:
    plain = play(case, policy, jumps=False, honour_repeats=False, keep=True)
    for jumps, honour_repeats in ((False, True), (True, False), (True, True)):
        other = play(case, policy, jumps=jumps, honour_repeats=honour_repeats, keep=True)
        assert step_by_step(other.turns) == plain.turns
        assert other.stories == plain.stories
        assert journal(other) == journal(plain)
    event(f"preempts: {any(story.preemptions for story in plain.stories.values())}")


@pytest.mark.parametrize("policy", sorted(POLICIES))
@given(case=cases(("chat", "batch")))
@settings(QUICK, max_examples=50)
def test_repeats_and_jumps_change_nothing(policy: str, case: Case) -> None:
    compare_ways(case, policy)


@pytest.mark.slow
@pytest.mark.parametrize("policy", sorted(POLICIES))
@given(case=cases(("chat", "batch")))
@LONG
def test_repeats_and_jumps_change_nothing_at_length(policy: str, case: Case) -> None:
    compare_ways(case, policy)
