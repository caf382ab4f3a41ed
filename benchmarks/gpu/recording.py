"""Journals of simulated servers, to be executed later and elsewhere: nothing of a card is needed to make them.

python -m stepwell.benchmarks.gpu.recording      writes those in benchmarks/gpu/journals again
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stepwell.core.config import Config
from stepwell.core.registry import complete
from stepwell.sim.run import simulate
from stepwell.sim.scenario import read_scenario
from stepwell.sim.workload.generate import ClassMix, Synthetic, generate
from stepwell.sim.workload.mixes import Lengths
from stepwell.sim.workload.rates import Arrivals

POLICIES = ("fcfs", "swap", "chat-batch", "srpt", "vtc", "sarathi")
"""One that recomputes, one that swaps, classes, shortest first, fairness, and prompts in slices."""
JOURNALS = Path(__file__).parent / "journals"
SEED = 1
"""Of the requests in the journals; calibration takes others."""


@dataclass(frozen=True)
class House:
    """A server and its requests: ``count`` of them, ``per_s`` a second.  Pages run out long before seats do."""

    settings: tuple[str, ...]
    mix: tuple[ClassMix, ...]
    count: int
    per_s: float


CARD = House(
    settings=(
        "scheduler.running_limit=64",
        "scheduler.token_budget=2048",
        "scheduler.max_context=4096",
        "memory.allocator=paged",
        "memory.page_size=16",
        "memory.pages=800",
        "memory.host_pages=1024",
        "cost.model=roofline",
        "cost.options.model=llama-3-8b",
        "cost.options.device=H200",
    ),
    mix=(
        ClassMix(Lengths(256, 0.8, 16, 2048), Lengths(160, 0.6, 4, 512), "chat", 0.7),
        ClassMix(Lengths(640, 0.6, 64, 2048), Lengths(224, 0.5, 16, 512), "batch", 0.3),
    ),
    count=72,
    per_s=100.0,
)
NO_CARD = House(
    settings=(
        "scheduler.running_limit=4",
        "scheduler.token_budget=24",
        "scheduler.max_context=64",
        "memory.allocator=paged",
        "memory.page_size=8",
        "memory.pages=8",
        "memory.host_pages=32",
        "cost.model=linear",
    ),
    mix=(
        ClassMix(Lengths(14, 0.4, 6, 24), Lengths(6, 0.5, 3, 10), "chat", 0.7),
        ClassMix(Lengths(20, 0.3, 8, 28), Lengths(8, 0.4, 4, 12), "batch", 0.3),
    ),
    count=8,
    per_s=2000.0,
)


def config_of(house: House, policy: str) -> Config:
    overrides = [*house.settings, f"scheduler.policy={policy}"]
    return complete(read_scenario(None, overrides=overrides, environ={}).config)


def record(house: House, policy: str, path: Path, seed: int = SEED) -> Path:
    """Simulate it, every decision written to ``path``, which is made anew."""
    requests = generate(Synthetic(Arrivals(house.per_s), house.mix, count=house.count, seed=seed, name=f"gpu-{seed}"))
    path.unlink(missing_ok=True)
    simulate(config_of(house, policy), workload=requests, journal=path)
    return path


def main() -> None:
    JOURNALS.mkdir(exist_ok=True)
    for policy in POLICIES:
        print(record(CARD, policy, JOURNALS / f"{policy}.jsonl"))


if __name__ == "__main__":
    main()
