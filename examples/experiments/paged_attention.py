"""vLLM, Figure 12(a): paged against contiguous KV memory, normalised latency against request rate.

    python -m stepwell.examples.experiments.paged_attention --picture paged.png

Orca (Max) reserves 2,048 tokens for each request, Orca (Oracle) exactly what it will need; both as one extent.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from stepwell.examples.experiments.setup import (
    OPT_13B,
    Arm,
    Point,
    Setup,
    Side,
    chats,
    knee,
    mean,
    per_token_s,
    rates,
    sweep,
)
from stepwell.examples.experiments.show import Experiment, main
from stepwell.examples.experiments.verdict import Quantity

SECONDS = 300
LIMIT_S = 0.5
"""Seconds a token at which the curves of the figure have left the ground."""

SETUP = Setup(
    cost={"device": "A100-40", "model": OPT_13B, "utilisation": 0.95, "reserve_mib": 512},
    pages=981,  # 15.7 thousand slots, Table 1
)


def point(seed: int, share: float, arm: Arm, rate: float) -> Point:
    workload = chats(rate, max(60, round(rate * SECONDS * max(share, 0.35))), seed)
    y = mean(per_token_s(SETUP.simulate(arm, workload)))
    return Point(rate, y, y / LIMIT_S)


def measure(seed: int, share: float, side: Side) -> list[Point]:
    return sweep(rates(0.5, 10.0, 1.3), partial(point, seed, share, side.arms[0]))


def read(curves: Sequence[list[Point]]) -> list[float]:
    paged, oracle, most = map(knee, curves)
    return [paged / oracle, paged / most]


EXPERIMENT = Experiment(
    name="paged_attention",
    paper="Kwon et al., Efficient Memory Management for LLM Serving with PagedAttention, SOSP'23",
    figure="Figure 12(a), OPT-13B, ShareGPT",
    claim="on ShareGPT vLLM sustains 1.7-2.7x the request rate of Orca (Oracle) and 2.7-8x that of Orca (Max)",
    sides=(
        Side("paged (vLLM)", (Arm(policy="vllm"),)),
        Side("contiguous, length known (Oracle)", (Arm(policy="vllm", allocator="contiguous", knows_lengths=True),)),
        Side("contiguous, greatest length (Max)", (Arm(policy="vllm", allocator="contiguous"),)),
    ),
    quantities=(
        Quantity(what="rate of paged over Oracle", least=1.7, most=2.7),
        Quantity(what="rate of paged over Max", least=2.7, most=8.0),
    ),
    measure=measure,
    read=read,
    axes=("requests a second", "normalised latency, s/token"),
    limit=LIMIT_S,
)

if __name__ == "__main__":
    main([EXPERIMENT], __doc__)
