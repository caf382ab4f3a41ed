"""Orca, Figure 10(b): continuous against static batching, median normalised latency against throughput.

    python -m stepwell.examples.experiments.continuous_batching --picture orca.png

Static batching is tried at several batch sizes, and at each latency the best one counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from stepwell.core.types import NS_PER_S
from stepwell.examples.experiments.setup import Arm, Point, Setup, Side, best, chats, knee, per_token_s, rates, sweep
from stepwell.examples.experiments.show import Experiment, main
from stepwell.examples.experiments.verdict import Quantity
from stepwell.sim.cost.architecture import GroupedQuery, LanguageModel
from stepwell.sim.workload import draws
from stepwell.sim.workload.request import TraceRequest, Workload

COUNT = 400
LIMIT = 2.0
"""Over the latency of a request that is alone."""
BATCHES = (1, 2, 4, 8, 16, 32)

GPT_3 = LanguageModel(
    name="gpt-3-175b",
    layers=96,
    hidden=12_288,
    intermediate=32_768,  # 49,152 without a gate
    vocabulary=50_257,
    attention=GroupedQuery(heads=96, kv_heads=96, head_dim=128),
    context=2048,
    source="https://arxiv.org/abs/2005.14165, table 2.1",
)
SETUP = Setup(
    cost={"device": "A100-40", "model": GPT_3, "tensor_parallel": 8, "pipeline_parallel": 2},
    pages=3000,
    token_budget=32 * 512,
    max_context=640,
)


def workload(rate: float, count: int, seed: int) -> Workload:
    """Prompts of 32 to 512 tokens, answers of 1 to 128, both evenly distributed; Poisson."""
    prompts, answers = draws.uniforms(seed, 60, count), draws.uniforms(seed, 70, count)
    arrivals = [each.arrival_ns for each in chats(rate, count, seed).requests]
    lengths = zip(arrivals, prompts.tolist(), answers.tolist(), strict=True)
    return Workload("orca", [TraceRequest(at, 32 + int(p * 481), 1 + int(a * 128)) for at, p, a in lengths])


def median_s(arm: Arm, requests: Workload) -> tuple[float, float]:
    """Requests completed a second, and the median normalised latency."""
    result = SETUP.simulate(arm, requests)
    latencies = per_token_s(result)
    return len(latencies) * NS_PER_S / result.metrics.end_ns, latencies[len(latencies) // 2]


def point(seed: int, count: int, limit_s: float, arm: Arm, rate: float) -> Point:
    throughput, latency_s = median_s(arm, workload(rate, count, seed))
    return Point(throughput, latency_s, latency_s / limit_s)


def measure(seed: int, share: float, side: Side) -> list[Point]:
    count = max(60, round(COUNT * share))
    limit_s = LIMIT * median_s(Arm(policy="fcfs", seats=1), workload(0.02, count, seed))[1]
    grid = rates(0.15, 20.0, 1.35)
    return best([sweep(grid, partial(point, seed, count, limit_s, arm)) for arm in side.arms])


def read(curves: Sequence[list[Point]]) -> list[float]:
    continuous, static = map(knee, curves)
    return [continuous / static]


EXPERIMENT = Experiment(
    name="continuous_batching",
    paper="Yu et al., Orca: A Distributed Serving System for Transformer-Based Generative Models, OSDI'22",
    figure="Figure 10(b), GPT-3 175B",
    claim="at the same median normalised latency Orca has 36.9 times the throughput of FasterTransformer",
    sides=(
        Side("continuous", (Arm(policy="fcfs", allocator="contiguous", seats=32),)),
        Side(
            "static, best batch size",
            tuple(
                Arm(policy="static", options={"batch_size": size}, allocator="contiguous", seats=size)
                for size in BATCHES
            ),
        ),
    ),
    quantities=(Quantity(what="throughput of continuous over static", least=36.9, most=36.9),),
    measure=measure,
    read=read,
    axes=("requests completed a second", "median normalised latency, s/token"),
)

if __name__ == "__main__":
    main([EXPERIMENT], __doc__)
