"""FastServe, Figure 11: a multi-level feedback queue against vLLM's FCFS, mean normalised latency against rate.

    python -m stepwell.examples.experiments.feedback_queue --picture fastserve.png

Set up as the commands of the paper's artifact: 16 seats, 400 pages, 400 requests of ShareGPT.
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

COUNT = 400
LIMIT_S = 0.1
"""Seconds a token; the answer is read at about that pace."""

SETUP = Setup(
    cost={"device": "A100-80", "model": OPT_13B},
    pages=400,
    host_pages=2500,  # 32 GiB
    running_limit=16,
)


def point(seed: int, share: float, arm: Arm, rate: float) -> Point:
    workload = chats(rate, max(150, round(COUNT * share)), seed)
    y = mean(per_token_s(SETUP.simulate(arm, workload)))
    return Point(rate, y, y / LIMIT_S)


def measure(seed: int, share: float, side: Side) -> list[Point]:
    return sweep(rates(0.5, 20.0), partial(point, seed, share, side.arms[0]))


def read(curves: Sequence[list[Point]]) -> list[float]:
    queue, first = curves
    return [knee(queue) / knee(first), first[0].y / queue[0].y]


EXPERIMENT = Experiment(
    name="feedback_queue",
    paper="Wu et al., FastServe: Iteration-Level Preemptive Scheduling for LLM Inference, NSDI'26",
    figure="Figure 11, OPT-13B, ShareGPT",
    claim="at the same mean latency FastServe serves up to 6.1x vLLM's rate; at low rates they are alike",
    sides=(Side("mlfq", (Arm(policy="mlfq"),)), Side("fcfs (vLLM)", (Arm(policy="vllm"),))),
    quantities=(
        Quantity(what="rate of mlfq over vLLM", least=6.1, most=6.1),
        Quantity(
            what="latency of vLLM over mlfq, 0.5 requests/s",
            least=1.0,
            most=1.0,
            tolerance=1.05,
            beyond=0.9,
            confirmed=False,
        ),
    ),
    measure=measure,
    read=read,
    axes=("requests a second", "mean normalised latency, s/token"),
    limit=LIMIT_S,
)

if __name__ == "__main__":
    main([EXPERIMENT], __doc__)
