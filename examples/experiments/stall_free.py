"""Sarathi-Serve, Figure 10: chunked prefills beside decodes against prefill first, the rate that holds a tail TBT.

    python -m stepwell.examples.experiments.stall_free --picture sarathi.png

vLLM, as it was in 2023, computes whole prompts before anything else: the policy of ``prefill_first.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from stepwell.core.types import NS_PER_S
from stepwell.examples.experiments.setup import Arm, Point, Setup, Side, chats, knee, rates, sweep
from stepwell.examples.experiments.show import Experiment, main
from stepwell.examples.experiments.verdict import Quantity
from stepwell.sim.workload.generate import ClassMix
from stepwell.sim.workload.mixes import Lengths

COUNT = 400
TBT_S, WAIT_S = 0.1, 2.0
"""The strict objective of Mistral-7B: the 99th percentile of the time between tokens; and the median time in line."""

PREFILL_FIRST = f"{Path(__file__).parent / 'prefill_first.py'}:PrefillFirst"
OPENCHAT = ClassMix(prompt=Lengths(2664, 0.93, 16, 7000), output=Lengths(481, 0.545, 4, 1100))
"""Table 2: prompts of 1,730 tokens in the median and 5,696 at the 90th percentile; answers of 415 and 834."""
SETUP = Setup(
    cost={"device": "A100-80", "model": "mistral-7b"},
    pages=21_000,
    running_limit=128,
    token_budget=16_384,
    max_context=8192,
)


def point(seed: int, share: float, arm: Arm, rate: float) -> Point:
    result = SETUP.simulate(arm, chats(rate, max(60, round(COUNT * share)), seed, OPENCHAT))
    tbt_s = (result.summary.all.itl_ms.p99 or 0.0) / 1000
    waits = sorted(r.admitted_ns - r.arrival_ns for r in result.metrics.requests.values())
    return Point(rate, tbt_s, max(tbt_s / TBT_S, waits[len(waits) // 2] / NS_PER_S / WAIT_S))


def measure(seed: int, share: float, side: Side) -> list[Point]:
    return sweep(rates(0.4, 9.0, 1.2), partial(point, seed, share, side.arms[0]))


def read(curves: Sequence[list[Point]]) -> list[float]:
    chunked, whole = map(knee, curves)
    return [chunked / whole]


EXPERIMENT = Experiment(
    name="stall_free",
    paper="Agrawal et al., Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve, OSDI'24",
    figure="Figure 10, Mistral-7B on an A100, openchat_sharegpt4, strict SLO",
    claim="under a bound on the 99th percentile of the time between tokens Sarathi-Serve serves up to 2.6x vLLM's rate",
    sides=(
        Side(
            "sarathi, 512 tokens a step",
            (Arm(policy="sarathi", options={"step_ms": 1000 * TBT_S}, token_budget=512),),
        ),
        Side("prefill first", (Arm(policy=PREFILL_FIRST),)),
    ),
    quantities=(Quantity(what="rate of sarathi over prefill first", least=2.6, most=2.6),),
    measure=measure,
    read=read,
    axes=("requests a second", "p99 time between tokens, s"),
    limit=TBT_S,
)

if __name__ == "__main__":
    main([EXPERIMENT], __doc__)
