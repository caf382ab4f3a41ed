"""``sarathi``: the worst time between tokens stays flat while a prompt of 32k tokens is computed."""

from __future__ import annotations

from itertools import pairwise

from stepwell.core.limits import SchedulerLimits
from stepwell.core.types import NS_PER_MS
from stepwell.sim.cost.linear import Linear
from stepwell.sim.workload.request import TraceRequest
from stepwell.tests.helpers.runs import Pool
from stepwell.tests.policies.playing import play

REQUESTS = [*(TraceRequest(0, 100, 2000) for _ in range(8)), TraceRequest(100 * NS_PER_MS, 32_000, 10)]


def worst_gap_ns(name: str, options: dict[str, object]) -> int:
    """The longest time between two tokens of those who run while the long prompt is computed."""
    limits = SchedulerLimits(token_budget=8192)
    run = play(name, REQUESTS, options, limits=limits, pool=Pool(4096, 16), cost=Linear.Options())
    stories = list(run.stories.values())
    assert stories[8].first_ns > 0
    return max(b - a for story in stories[:8] for a, b in pairwise(story.token_ns) if a >= REQUESTS[8].arrival_ns)


def test_the_worst_time_between_tokens_stays_flat() -> None:
    assert worst_gap_ns("fcfs", {}) > 200 * NS_PER_MS
    assert worst_gap_ns("sarathi", {"step_ms": 40}) <= 40 * NS_PER_MS
    assert worst_gap_ns("sarathi", {"step_ms": 20}) <= 20 * NS_PER_MS
