"""What the card is to reach, and whether it did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stepwell.benchmarks.gpu.lines import Line

Verdict = Literal["pass", "miss", "not measured"]


@dataclass(frozen=True)
class Target:
    """``bound`` is the least a figure may be, or with ``most`` the most; every line with this ``key`` is held to it."""

    key: str
    what: str
    bound: float
    unit: str
    most: bool = False

    def reached(self, value: float) -> bool:
        return value <= self.bound if self.most else value >= self.bound


TARGETS = (
    Target("correct", "kernels: error as a share of what is allowed", 1.0, "", most=True),
    Target("attention", "decode attention, at least 4 GiB of KV: share of measured copy bandwidth", 80.0, "%"),
    Target("streaming", "decode at batch 1: share of the weight-streaming limit", 70.0, "%"),
    Target("gap", "host gap at batch 64: share of a step", 5.0, "%", most=True),
    Target("theirs", "64 requests: times the tokens/s of transformers", 3.0, "×"),
    Target("steps", "step times predicted: mean error on held-out steps", 2.0, "%", most=True),
    Target("decisions", "decisions of six policies, equal to those recorded elsewhere", 100.0, "%"),
)


@dataclass(frozen=True)
class Outcome:
    """``value`` is the worst of the lines that are held to the target."""

    target: Target
    verdict: Verdict
    value: float | None = None
    why: str = ""


def outcome(target: Target, lines: Sequence[Line], toy: str = "") -> Outcome:
    """``toy``: why figures that depend on the machine are none, where they were taken without a GPU."""
    held = [line for line in lines if line.target == target.key]
    values = [line.value for line in held if line.value is not None]
    missing = [line for line in held if line.value is None]
    if toy and target.key not in ("correct", "decisions"):
        return Outcome(target, "not measured", why=toy)
    if not values:
        return Outcome(target, "not measured", why=missing[0].note if missing else "its section did not get there")
    worst = max(values) if target.most else min(values)
    if not target.reached(worst):
        return Outcome(target, "miss", worst)
    if missing:  # what was not measured cannot have passed
        return Outcome(target, "not measured", worst, f"{missing[0].what}: {missing[0].note}")
    return Outcome(target, "pass", worst)
