"""ME-2: the metrics of a live engine agree with the simulator's, which were written apart, and settle at zero."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from stepwell.core.events import Event, Submitted
from stepwell.core.instructions import Admitted, Finished, Instruction
from stepwell.core.metrics import ServingMetrics
from stepwell.core.metrics_histogram import Histogram
from stepwell.core.types import NS_PER_S
from stepwell.sim.cost.linear import Linear
from stepwell.sim.loop import Simulator
from stepwell.sim.metrics import RunMetrics
from stepwell.tests.core.shells import Case, fixed_case

REASON = {"stop": "stop", "length": "length", "cancelled": "abort", "expired": "abort", "error": "error"}


class Falling(AssertionError):
    """A counter went down."""


def watch(case: Case) -> tuple[ServingMetrics, RunMetrics]:
    """Both over one simulation, step by step; counters never fall on the way."""
    scheduler = case.build()
    total = scheduler.state.allocator.total_pages
    serving, run = ServingMetrics("m", total), RunMetrics()
    last: dict[str, int] = {}

    def check(now_ns: int, events: Sequence[Event], out: Sequence[Instruction]) -> None:
        state = scheduler.state
        assert serving.running + serving.waiting == len(state.requests)
        assert serving.pages == run._pages
        assert 0 <= serving.pages <= total
        for name in ("prompt_tokens", "generation_tokens", "cached_tokens", "queried_tokens"):
            if getattr(serving, name) < last.get(name, 0):
                raise Falling(name)
            last[name] = getattr(serving, name)

    Simulator(
        scheduler,
        Linear(case.cost),
        case.requests,
        observers=[serving.observe, run.observe, check],
        max_tokens=case.max_tokens,
        faults=case.fault_script(),
        jumps=False,
    ).run()
    return serving, run


@pytest.mark.parametrize("policy", ["fcfs", "swap", "chat-batch"])
@pytest.mark.parametrize("seed", range(12))
def test_me_2_everything_reconciles(seed: int, policy: str) -> None:
    serving, run = watch(fixed_case(seed, policy, "paged"))
    records = run.requests.values()
    refused = sum(run.refused.values())
    accepted = len(records) - refused + run.refused.get("policy", 0)
    assert serving.accepted == accepted
    assert sum(serving.rejections.values()) == refused
    assert sum(serving.ends.values()) + serving.rejections.get("policy", 0) == accepted
    for reason, word in REASON.items():
        ended = sum(REASON.get(each.reason) == word for each in records)
        assert serving.ends[word] == ended, reason
    histograms = serving.histograms
    assert histograms["time_to_first_token_seconds"].count == sum(each.first_token_ns > 0 for each in records)
    waits = sum(each.first_token_ns - each.arrival_ns for each in records if each.first_token_ns)
    assert histograms["time_to_first_token_seconds"].sum == pytest.approx(waits / 1e9)
    gaps = [(gap, n) for each in run.gaps.values() for gap, n in zip(each.gaps_ns, each.counts, strict=True)]
    assert histograms["inter_token_latency_seconds"].count == sum(n for _, n in gaps)
    assert histograms["inter_token_latency_seconds"].sum == pytest.approx(sum(gap * n for gap, n in gaps) / 1e9)
    assert sum(serving.preemptions.values()) == run.swaps + run.recomputes
    serving.step.settle()
    assert serving.step.launched == run.steps
    assert serving.cached_tokens == 0
    assert serving.prompt_tokens == histograms["request_prompt_tokens"].sum
    assert serving.prompt_tokens == sum(each.prompt_tokens for each in records if each.reason != "rejected")
    assert (serving.running, serving.waiting, serving.pages, serving.stalled_ns(1 << 60)) == (0, 0, 0, 0)


def test_me_2_tokens_are_counted_as_they_are_sampled() -> None:
    for seed in range(6):
        serving, run = watch(fixed_case(seed, "fcfs", "paged"))
        answers = sum(each.tokens for each in run.requests.values())
        assert serving.histograms["request_generation_tokens"].sum == answers
        assert serving.generation_tokens >= answers


def test_many_equal_values_are_one_addition() -> None:
    draw = random.Random(1)
    one, many = Histogram((1.0, 2.0, 5.0)), Histogram((1.0, 2.0, 5.0))
    for _ in range(50):
        value, times = draw.choice((0.5, 1.0, 1.5, 5.0, 9.0)), draw.randint(1, 9)
        many.add(value, times)
        for _ in range(times):
            one.add(value)
    assert one.counts == many.counts
    assert one.cumulative()[-1] == ("+Inf", one.count)
    assert one.sum == pytest.approx(many.sum)


def test_the_text_has_the_names_that_tools_look_for() -> None:
    serving, _ = watch(fixed_case(3, "swap", "paged"))
    serving.count("slow_client")
    serving.gauges["stepwell:streams_open"] = "Streams.", lambda: 3.0
    text = serving.exposition().decode()
    for name in (
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:num_preemptions_total",
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        'finished_reason="abort"',
        "vllm:e2e_request_latency_seconds_bucket",
        'stepwell:transport_total{engine="0",event="slow_client",model_name="m"} 1.0',
        'stepwell:streams_open{engine="0",model_name="m"} 3.0',
    ):
        assert name in text


def test_a_wait_is_guessed_from_what_is_known() -> None:
    """First nothing; then from the oldest that runs; then from the pace at which requests end; and anew when idle."""
    serving, second = ServingMetrics("m", 8), NS_PER_S
    assert serving.wait_ns(0) == 0
    for id in range(1, 5):
        serving.observe(0, [Submitted(id, 1, 100)], [])
    assert serving.wait_ns(second) == 0
    serving.observe(second, [], [Admitted(1), Admitted(2)])
    # Two run, the older one for four seconds and as long again: one ends every two seconds, and two wait.
    assert serving.wait_ns(5 * second) == 4 * second
    # At a quarter of a second a token it has 25 seconds, and then five more.
    serving.histograms["inter_token_latency_seconds"].add(0.25, times=8)
    assert serving.wait_ns(21 * second) == 5 * second
    serving.observe(30 * second, [], [Finished(1, "stop", 9), Admitted(3)])
    serving.observe(33 * second, [], [Finished(2, "stop", 9)])
    assert serving.wait_ns(40 * second) == 3 * second
    serving.observe(50 * second, [], [Finished(3, "stop", 9), Finished(4, "cancelled", 0)])
    serving.observe(9999 * second, [Submitted(5, 1, 100)], [])
    assert serving.wait_ns(9999 * second) == 0
