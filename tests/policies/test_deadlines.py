"""``edf`` and ``least-slack``: what can be met is met, by the objectives of the classes."""

from __future__ import annotations

import msgspec
import pytest

from stepwell.core.events import Submitted
from stepwell.core.limits import ClassLimits, SchedulerLimits, TenantLimits
from stepwell.core.snapshot import capture, restore
from stepwell.sim.workload.request import TraceRequest
from stepwell.tests.helpers.runs import build
from stepwell.tests.helpers.timeline import Timeline
from stepwell.tests.policies.playing import order, play

CLASSES = (ClassLimits("fast", 0, 1.0, 400), ClassLimits("slow", 0, 1.0, 3_000), ClassLimits("any", 1))
LIMITS = SchedulerLimits(running_limit=1, token_budget=2048, classes=CLASSES)
OPTIONS: dict[str, object] = {"otherwise_s": 1e-5, "preempt": "never"}


def missed(run: Timeline, requests: list[TraceRequest]) -> list[int]:
    """Requests whose first token came after their class's objective."""
    due = {each.name: each.ttft_ns for each in CLASSES}
    late = [(id, it) for id, it in run.stories.items() if due[requests[id - 1].klass]]
    return [id for id, it in late if it.first_ns - it.arrival_ns > due[requests[id - 1].klass]]


def test_edf_meets_what_can_be_met_and_fcfs_does_not() -> None:
    """Ten slow ones and then three fast ones: there is time for all, if the fast ones go first."""
    requests = [
        *(TraceRequest(0, 16, 10, "slow") for _ in range(10)),
        *(TraceRequest(1, 16, 5, "fast") for _ in range(3)),
    ]
    assert not missed(play("edf", requests, OPTIONS, limits=LIMITS), requests)
    assert not missed(play("least-slack", requests, OPTIONS, limits=LIMITS), requests)
    assert missed(play("fcfs", requests, limits=LIMITS), requests) == [11, 12, 13]


def test_a_more_urgent_request_takes_the_seat_of_one_that_is_due_later() -> None:
    requests = [TraceRequest(0, 16, 300, "any"), TraceRequest(500, 16, 5, "fast")]
    run = play("edf", requests, {"otherwise_s": 1e-5}, limits=LIMITS)
    assert [it.beneficiary for _, it in run.stories[1].preemptions] == [2]
    assert not missed(run, requests)
    assert missed(play("edf", requests, OPTIONS, limits=LIMITS), requests) == [2]


def test_a_class_without_an_objective_does_not_starve() -> None:
    """Due 10 µs after arrival, so the stream of fast ones stops being before it."""
    stream = [TraceRequest(0, 16, 8, "fast"), TraceRequest(1, 16, 8, "any")]
    stream += [TraceRequest(2 + 100 * k, 16, 8, "fast") for k in range(200)]
    run = play("edf", stream, OPTIONS, limits=LIMITS)
    assert 9_000 < run.stories[2].admissions[0] < 12_000


def test_least_slack_counts_the_prefill_that_a_long_prompt_needs() -> None:
    """Due 200 ns later, but its prefill takes 1500 ns: by deadline second, by slack first."""
    requests = [TraceRequest(0, 16, 30, "any"), TraceRequest(1, 16, 4, "slow"), TraceRequest(200, 1500, 4, "slow")]
    estimate = {"base_ns": 10, "prefill_token_ns": 1, "decode_request_ns": 1, "kv_token_ps": 0, "swap_page_ns": 5}
    assert order(play("edf", requests, OPTIONS, limits=LIMITS)) == [1, 2, 3]
    options = {**OPTIONS, "estimate_options": estimate}
    assert order(play("least-slack", requests, options, limits=LIMITS)) == [1, 3, 2]


def test_a_request_is_due_before_it_expires() -> None:
    scheduler = build("fcfs", limits=LIMITS)
    from_policy = []
    scheduler.handle(0, [Submitted(1, 4, 4, "slow", expires_ns=77), Submitted(2, 4, 4, "any")])
    for request in scheduler.state.requests.values():
        from_policy.append((request.ttft_ns, request.tpot_ns, request.expires_ns))
    assert from_policy == [(3_000, 0, 77), (0, 0, 0)]


@pytest.mark.parametrize("klass", ["fast", "any"])
def test_objectives_survive_a_snapshot(klass: str) -> None:
    """And so do the weight of its tenant, and what the client said of itself."""
    limits = msgspec.structs.replace(LIMITS, tenants=(TenantLimits("gold", 3.0),))
    scheduler, again = build("fcfs", limits=limits), build("fcfs", limits=limits)
    scheduler.handle(0, [Submitted(1, 4, 4, klass, "gold", priority=-2, program="loop")])
    restore(again, capture(scheduler))
    for request in (again.state.requests[1], scheduler.state.requests[1]):
        assert request.ttft_ns == (400 if klass == "fast" else 0)
        assert (request.weight, request.priority, request.program) == (3.0, -2, "loop")
