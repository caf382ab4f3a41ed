"""``sarathi``: the worst time between tokens stays flat while a prompt of 32k tokens is computed."""

from __future__ import annotations

from itertools import pairwise

from stepwell.core.limits import DEFAULT_CLASSES, ClassLimits, SchedulerLimits
from stepwell.core.types import NS_PER_MS
from stepwell.sim.cost.linear import Linear
from stepwell.sim.workload.request import TraceRequest
from stepwell.tests.helpers.runs import Pool
from stepwell.tests.helpers.timeline import Story
from stepwell.tests.policies.playing import play

REQUESTS = [*(TraceRequest(0, 100, 2000) for _ in range(8)), TraceRequest(100 * NS_PER_MS, 32_768, 10)]


CLASSES = (ClassLimits("chat", 0, 1.0, 1_000 * NS_PER_MS, 30 * NS_PER_MS),)


def ran(name: str, options: dict[str, object], classes: tuple[ClassLimits, ...] = DEFAULT_CLASSES) -> list[Story]:
    limits = SchedulerLimits(token_budget=8192, classes=classes)
    run = play(name, REQUESTS, options, limits=limits, pool=Pool(4096, 16), cost=Linear.Options())
    return [run.stories[id] for id in sorted(run.stories)]


def worst_gap_ns(stories: list[Story]) -> int:
    """The longest time between two tokens of those who run while the long prompt is computed."""
    assert stories[8].first_ns > 0
    return max(b - a for story in stories[:8] for a, b in pairwise(story.token_ns) if a >= REQUESTS[8].arrival_ns)


def test_the_worst_time_between_tokens_stays_flat() -> None:
    assert worst_gap_ns(ran("fcfs", {})) > 200 * NS_PER_MS
    assert worst_gap_ns(ran("sarathi", {"step_ms": 40})) <= 40 * NS_PER_MS
    assert worst_gap_ns(ran("sarathi", {"step_ms": 20})) <= 20 * NS_PER_MS


def test_the_objective_of_a_class_is_a_bound_too() -> None:
    assert worst_gap_ns(ran("sarathi", {"step_ms": 40}, CLASSES)) <= 30 * NS_PER_MS


def test_slack_is_used_and_nobody_is_late_for_it() -> None:
    """Those who run are ahead of 30 ms a token: the prompt is done sooner, in longer steps."""
    even = ran("sarathi", {}, CLASSES)
    slack = ran("sarathi", {"most_ms": 150}, CLASSES)
    assert slack[8].first_ns < 0.9 * even[8].first_ns
    assert 30 * NS_PER_MS < worst_gap_ns(slack) <= 150 * NS_PER_MS
    for story in slack[:8]:
        due_ns = [story.arrival_ns + (1_000 + 30 * k) * NS_PER_MS for k in range(len(story.token_ns))]
        assert all(at <= due for at, due in zip(story.token_ns, due_ns, strict=True))


def test_whoever_is_late_keeps_pace_and_does_not_stop_prompts() -> None:
    """No step can keep 5 ms."""
    late = (ClassLimits("chat", 0, 1.0, 1, 5 * NS_PER_MS),)
    paces = [ran("sarathi", {"most_ms": most, "least": 512}, late)[8].first_ns for most in (150, 0)]
    assert 0 < paces[0] == paces[1]
