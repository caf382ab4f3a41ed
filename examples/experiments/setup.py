"""What experiments run: contenders under a set-up, lengths of ShareGPT, curves over request rates, and their knees."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from stepwell.core.config import Config, CostConfig, MemoryConfig, SchedulerConfig
from stepwell.core.types import NS_PER_S
from stepwell.sim import run
from stepwell.sim.cost.architecture import GroupedQuery, LanguageModel
from stepwell.sim.run import Result
from stepwell.sim.workload.generate import ClassMix, Synthetic, generate
from stepwell.sim.workload.mixes import Lengths
from stepwell.sim.workload.rates import Arrivals
from stepwell.sim.workload.request import Workload

OPT_13B = LanguageModel(
    name="opt-13b",
    layers=40,
    hidden=5120,
    intermediate=13_653,  # 20,480 without a gate: as many parameters as a gated layer of two thirds
    vocabulary=50_272,
    attention=GroupedQuery(heads=40, kv_heads=40, head_dim=128),
    context=2048,
    source="https://huggingface.co/facebook/opt-13b/blob/main/config.json",
)

SHAREGPT = ClassMix(prompt=Lengths(170, 1.1, 4, 1024), output=Lengths(372, 0.95, 4, 1024))
"""Means of 161 and 338 tokens after clipping, as in Figure 11 of the PagedAttention paper; the spread is a guess."""


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """One contender: a policy and an allocator.  ``token_budget`` 0: the set-up's."""

    policy: str
    options: Mapping[str, Any] = {}
    allocator: str = "paged"
    token_budget: int = 0
    seats: int = 0
    knows_lengths: bool = False
    """Whether requests say how long their answers will be, so that no more is reserved."""


class Side(msgspec.Struct, frozen=True):
    """A curve of the figure: the best of its arms at each point."""

    label: str
    arms: tuple[Arm, ...]


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """The machine: options of ``roofline``, and memory and limits of the scheduler."""

    cost: Mapping[str, Any]
    pages: int
    host_pages: int = 0
    running_limit: int = 256
    token_budget: int = 2048
    max_context: int = 2048

    def simulate(self, arm: Arm, workload: Workload) -> Result:
        if arm.knows_lengths:
            told = [msgspec.structs.replace(each, max_tokens=each.output_tokens) for each in workload.requests]
            workload = msgspec.structs.replace(workload, requests=told)
        config = Config(
            scheduler=SchedulerConfig(
                policy=arm.policy,
                options=dict(arm.options),
                token_budget=arm.token_budget or self.token_budget,
                running_limit=arm.seats or self.running_limit,
                max_context=self.max_context,
            ),
            memory=MemoryConfig(allocator=arm.allocator, pages=self.pages, host_pages=self.host_pages),
            cost=CostConfig(model="roofline", options=dict(self.cost)),
        )
        return run.simulate(config, workload=workload)


class Point(msgspec.Struct, frozen=True):
    """A point of a curve; ``strain`` is what is limited over its limit, so a knee is where it reaches 1."""

    x: float
    y: float
    strain: float


def chats(rate_per_s: float, count: int, seed: int, mix: ClassMix = SHAREGPT) -> Workload:
    """``count`` requests, Poisson."""
    return generate(Synthetic(Arrivals(rate_per_s), (mix,), count=count, seed=seed))


def per_token_s(result: Result) -> list[float]:
    """Normalised latency: from arrival to the last token, over the number of tokens; ascending."""
    records = result.metrics.requests.values()
    return sorted((r.last_token_ns - r.arrival_ns) / NS_PER_S / r.tokens for r in records if r.tokens)


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def rates(low: float, high: float, factor: float = 1.25) -> list[float]:
    """From ``low`` to ``high`` at least, each so many times the one before."""
    steps = math.ceil(math.log(high / low) / math.log(factor))
    return [low * factor**step for step in range(steps + 1)]


def sweep(xs: Sequence[float], measure: Callable[[float], Point], stop: float = 2.0) -> list[Point]:
    """Points from the lowest rate on, until one is strained beyond ``stop``."""
    points: list[Point] = []
    for x in xs:
        points.append(measure(x))
        if points[-1].strain > stop:
            break
    return points


def knee(points: Sequence[Point]) -> float:
    """The x at which the strain first reaches 1, interpolated between two points by logarithms.

    The first x if that is strained already, NaN if none is: a figure that stops short shows no knee.
    """
    if points[0].strain >= 1:
        return points[0].x
    for before, after in pairwise(points):
        if before.strain < 1 <= after.strain:
            part = math.log(1 / before.strain) / math.log(after.strain / before.strain)
            return before.x * math.pow(after.x / before.x, part)
    return math.nan


def best(curves: Sequence[list[Point]]) -> list[Point]:
    """The curve with the highest knee, of those that show one; the first if none does."""
    return max(curves, key=lambda each: found if math.isfinite(found := knee(each)) else -math.inf)
