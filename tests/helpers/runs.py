"""Puts a scheduler and a simulated run together for tests: round numbers, paged memory, any policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from stepwell.core.limits import SchedulerLimits
from stepwell.core.protocols import CostModel, SchedulerPolicy
from stepwell.core.scheduler import MakePolicy, Scheduler
from stepwell.core.types import FOREVER
from stepwell.memory.paged import Paged
from stepwell.policies.chat_batch import ChatBatch
from stepwell.policies.fcfs import Fcfs
from stepwell.policies.static import Static
from stepwell.policies.swap import Swap
from stepwell.sim.cost.linear import Linear
from stepwell.sim.cost.linear_options import LinearOptions
from stepwell.sim.loop import Simulator
from stepwell.sim.workload.request import TraceRequest
from stepwell.tests.helpers.timeline import Timeline

POLICIES: dict[str, Any] = {each.name: each for each in (Fcfs, Swap, ChatBatch, Static)}

ROUND = Linear.Options(
    base_ns=10, prefill_token_ns=1, prefill_request_ns=0, decode_request_ns=1, kv_token_ps=0, swap_page_ns=5
)
"""Step time on paper: 10 + prefill tokens + decoding requests + 5 per page copied."""


def make_policy(name: str, options: dict[str, object]) -> SchedulerPolicy:
    policy: SchedulerPolicy = POLICIES[name](msgspec.convert(options, POLICIES[name].Options))
    return policy


class Pool(msgspec.Struct, frozen=True):
    """Device and host pages."""

    pages: int = 64
    page_size: int = 16
    host_pages: int = 0


def build(
    policy: str | SchedulerPolicy = "fcfs",
    *,
    pool: Pool | None = None,
    limits: SchedulerLimits | None = None,
    options: dict[str, object] | None = None,
    honour_repeats: bool = True,
) -> Scheduler:
    """A scheduler; ``policy`` is a name or an object of the test's own."""
    pool = pool or Pool()
    allocator = Paged(Paged.Options(), pages=pool.pages, page_size=pool.page_size, host_pages=pool.host_pages)
    make: MakePolicy = make_policy
    if not isinstance(policy, str):
        own, policy = policy, "own"

        def make(name: str, options: dict[str, object]) -> SchedulerPolicy:
            return own

    return Scheduler(limits or SchedulerLimits(), allocator, make, policy, options, honour_repeats=honour_repeats)


def simulate(
    scheduler: Scheduler,
    requests: Sequence[TraceRequest],
    *,
    cost: CostModel | LinearOptions = ROUND,
    max_tokens: int = FOREVER,
    jumps: bool = True,
    keep: bool = False,
) -> Timeline:
    """Run to the end; the house must be empty then, with every page back in the pool."""
    timeline = Timeline(keep=keep)
    model = Linear(cost) if isinstance(cost, LinearOptions) else cost
    Simulator(scheduler, model, requests, observers=[timeline], max_tokens=max_tokens, jumps=jumps).run()
    assert_empty(scheduler)
    unended = [id for id, story in timeline.stories.items() if story.end_ns == -1]
    assert not unended, f"requests without an end: {unended[:10]}"
    assert len(timeline.stories) == len(requests)
    return timeline


def assert_empty(scheduler: Scheduler) -> None:
    """Nobody is left, and all pages of device and host are free."""
    assert not scheduler.state.requests
    assert not scheduler.state.inflight
    usage = scheduler.state.allocator.usage()
    assert (usage.free, usage.used, usage.returning) == (usage.total, 0, 0)
    assert usage.host_free == usage.host_total
    scheduler.state.allocator.check()
