"""Learning to rank: shortest job first against first come, first served, mean latency against request rate.

    python -m stepwell.examples.experiments.short_first --picture ltr.png

The order is that of true lengths, which the paper's ranking comes close to.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.examples.experiments.setup import Arm, Point, Setup, Side, chats, mean, per_token_s
from stepwell.examples.experiments.show import Experiment, main
from stepwell.examples.experiments.verdict import Quantity

SECONDS = 100
RATES = (6.0, 12.0, 18.0, 22.0, 26.0, 32.0)
"""The last is half as much again as is served; the second about half of that."""

SETUP = Setup(
    cost={"device": "A100-80", "model": "llama-3-8b"},
    pages=24_000,
    max_context=8192,
)


def point(seed: int, share: float, arm: Arm, rate: float) -> Point:
    workload = chats(rate, round(rate * SECONDS * max(share, 0.35)), seed)
    return Point(rate, mean(per_token_s(SETUP.simulate(arm, workload))), 0.0)


def measure(seed: int, share: float, side: Side) -> list[Point]:
    return [point(seed, share, side.arms[0], rate) for rate in RATES]


def read(curves: Sequence[list[Point]]) -> list[float]:
    short, first = curves
    return [first[-1].y / short[-1].y, first[1].y / short[1].y]


EXPERIMENT = Experiment(
    name="short_first",
    paper="Fu et al., Efficient LLM Scheduling by Learning to Rank, NeurIPS'24",
    figure="mean latency against rate, Llama-3-8B, ShareGPT",
    claim="mean latency per token of a chat under high load is 2.8 to 6.9 times lower than under FCFS, and the same "
    "under low load",
    sides=(
        Side("sjf, true lengths", (Arm(policy="sjf", options={"predictor": "oracle", "aging_s": 1e6}),)),
        Side("fcfs", (Arm(policy="fcfs"),)),
    ),
    quantities=(
        Quantity(what="latency of fcfs over sjf, 32 requests/s", least=2.8, most=6.9),
        Quantity(
            what="latency of fcfs over sjf, 12 requests/s",
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
)

if __name__ == "__main__":
    main([EXPERIMENT], __doc__)
