"""``vtc``: the gap in service between tenants that wait stays within the published bound; under ``fcfs`` it grows."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from stepwell.core import registry
from stepwell.core.config import MemoryConfig
from stepwell.core.events import StepDone, Submitted, UsePolicy
from stepwell.core.limits import SchedulerLimits, TenantLimits
from stepwell.core.scheduler import Scheduler
from stepwell.sim.workload.request import TraceRequest
from stepwell.tests.helpers.timeline import Timeline
from stepwell.tests.policies.playing import ORACLE, order, play

SEATS = SchedulerLimits(running_limit=4, token_budget=64)
PROMPT, OUTPUT = 32, 20
BATCH_TOKENS = 4 * (PROMPT + OUTPUT)
BOUND = 2 * max(1 * PROMPT, 2 * BATCH_TOKENS)
"""Sheng et al.: 2 max(w_p × longest prompt, w_q × tokens of a batch)."""

BOTH = [
    *(TraceRequest(0, PROMPT, OUTPUT, tenant="greedy") for _ in range(200)),
    *(TraceRequest(1, PROMPT, OUTPUT, tenant="modest") for _ in range(60)),
]


def service(run: Timeline, requests: list[TraceRequest]) -> Iterator[tuple[int, dict[str, int]]]:
    """What each tenant has been given, after every change: 1 for a prompt token, 2 for an output token."""
    changes = []
    for id, story in run.stories.items():
        changes.append((story.admissions[0], id, story.prompt))
        changes += [(at_ns, id, 2) for at_ns in story.token_ns]
    given = dict.fromkeys(sorted({each.tenant for each in requests}), 0)
    for at_ns, id, tokens in sorted(changes):
        given[requests[id - 1].tenant] += tokens
        yield at_ns, dict(given)


def gap(run: Timeline, requests: list[TraceRequest], weights: dict[str, float] | None = None) -> float:
    """The largest difference of service by weight while both tenants have somebody waiting."""
    until_ns = min(
        max(story.admissions[0] for id, story in run.stories.items() if requests[id - 1].tenant == tenant)
        for tenant in ("greedy", "modest")
    )
    weights = weights or {}
    return max(
        abs(given["greedy"] / weights.get("greedy", 1) - given["modest"] / weights.get("modest", 1))
        for at_ns, given in service(run, requests)
        if at_ns <= until_ns
    )


def test_the_gap_between_backlogged_tenants_is_bounded() -> None:
    assert gap(play("vtc", BOTH, limits=SEATS), BOTH) <= BOUND
    assert gap(play("fcfs", BOTH, limits=SEATS), BOTH) > 10 * BOUND


def test_with_guessed_lengths_a_batch_is_shared_when_it_is_formed() -> None:
    """Whoever is admitted counts at once with what is to come, so long answers of one tenant do not fill all seats."""
    seats = SchedulerLimits(running_limit=8, token_budget=64)
    requests = [TraceRequest(0, 4, 60, tenant="greedy") for _ in range(60)]
    requests += [TraceRequest(0, 4, 6, tenant="modest") for _ in range(600)]
    as_they_come, guessed = (gap(play("vtc", requests, options, limits=seats), requests) for options in ({}, ORACLE))
    assert guessed < 0.5 * as_they_come


def test_a_tenant_of_three_times_the_weight_is_given_three_times_as_much() -> None:
    weights = {"greedy": 3.0}
    tenants = tuple(TenantLimits(name, weight) for name, weight in weights.items())
    run = play("vtc", BOTH, limits=msgspec.structs.replace(SEATS, tenants=tenants))
    assert gap(run, BOTH, weights) <= BOUND
    assert gap(run, BOTH) > BOUND


@pytest.mark.parametrize("output", [2, 40])
def test_whoever_was_idle_has_saved_no_credit(output: int) -> None:
    """The modest tenant comes when the greedy one has been served for long: it takes turns, and does not catch up."""
    requests = [
        *(TraceRequest(0, PROMPT, OUTPUT, tenant="greedy") for _ in range(100)),
        *(TraceRequest(9_000, PROMPT, output, tenant="modest") for _ in range(40)),
    ]
    run = play("vtc", requests, limits=SchedulerLimits(running_limit=1, token_budget=64))
    since = [id for id in order(run) if run.stories[id].admissions[0] > 9_000]
    worth = (PROMPT + 2 * output) / (PROMPT + 2 * OUTPUT)
    greedy = sum(id <= 100 for id in since[:24])
    assert greedy / (24 - greedy) == pytest.approx(worth, rel=0.35)


def test_within_a_tenant_the_order_is_that_of_arrival() -> None:
    run = play("vtc", BOTH, limits=SEATS)
    for ids in (range(1, 201), range(201, 261)):
        assert [id for id in order(run) if id in ids] == list(ids)


@pytest.mark.parametrize(("successor", "kept"), [("vtc", [["a", 9.0]]), ("fcfs", None)])
def test_counters_stay_when_the_options_change(successor: str, kept: object) -> None:
    """What has ended is in nobody's live requests; only a policy of the same name is told of it."""
    allocator = registry.make_allocator(MemoryConfig(pages=8))
    scheduler = Scheduler(SchedulerLimits(), allocator, registry.make_policy, "vtc")
    scheduler.handle(0, [Submitted(1, 5, 9, tenant="a")])
    scheduler.handle(1, [StepDone(1)])
    scheduler.handle(2, [StepDone(2, [1])])
    guesses: dict[str, object] = {"guesses": [], "predictor": None}
    assert scheduler.memory() == {"tenants": [["a", 9.0]], "last_left": "a", "guesses": guesses}
    scheduler.handle(3, [UsePolicy(successor)])
    memory = scheduler.memory()
    assert (memory["tenants"] if isinstance(memory, dict) else None) == kept
