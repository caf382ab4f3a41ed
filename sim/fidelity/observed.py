"""What a run was like, live or predicted, in the same numbers by the same definitions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from stepwell.core.events import Event
from stepwell.core.instructions import Admitted, Instruction, Preempted, Resumed
from stepwell.core.types import NS_PER_MS, NS_PER_S, RequestId
from stepwell.sim.fidelity.live import ClientView
from stepwell.sim.journal_read import stretches, turns
from stepwell.sim.metrics import RunMetrics
from stepwell.sim.stats import percentiles

METRICS = (
    *("ttft_mean_ms", "ttft_p99_ms", "tpot_mean_ms", "tpot_p99_ms", "e2e_mean_ms", "e2e_p99_ms"),
    *("output_tokens_per_s", "mean_queue"),
)
"""What is predicted.  ``mean_queue``: requests that wait for their first admission, on average over the run."""


class Decision(msgspec.Struct, array_like=True, frozen=True):
    """One decision about who is on the device, and when it was taken."""

    kind: str
    request: RequestId
    now_ns: int = 0

    @property
    def same(self) -> tuple[str, RequestId]:
        """What two runs may agree on."""
        return self.kind, self.request


class Observed(msgspec.Struct):
    """A run's metrics by name, its decisions in order, and how often somebody gave way (swap, recompute)."""

    metrics: dict[str, float]
    decisions: list[Decision]
    swaps: int
    recomputes: int
    steps: int
    completed: int

    @property
    def admissions(self) -> list[RequestId]:
        return [each.request for each in self.decisions if each.kind == "admit"]

    @property
    def victims(self) -> list[RequestId]:
        return [each.request for each in self.decisions if each.kind in ("swap", "recompute")]


class Decisions:
    """An observer that notes them."""

    def __init__(self) -> None:
        self.made: list[Decision] = []

    def observe(self, now_ns: int, events: Sequence[Event], instructions: Sequence[Instruction]) -> None:
        for each in instructions:
            if isinstance(each, Admitted):
                self.made.append(Decision("admit", each.request, now_ns))
            elif isinstance(each, Preempted):
                self.made.append(Decision(each.mode, each.request, now_ns))
            elif isinstance(each, Resumed):
                self.made.append(Decision("resume", each.request, now_ns))


def observed_live(views: Sequence[ClientView], journal: Path) -> Observed:
    """From what clients saw; the journal tells of queue and decisions."""
    metrics, decisions = RunMetrics(), Decisions()
    for part in stretches(journal):
        for record in part.records():
            for moment in turns(record):
                metrics.observe(*moment)
                decisions.observe(*moment)
    return _observed(views, metrics, decisions)


def observed_simulated(metrics: RunMetrics, decisions: Decisions) -> Observed:
    """From a simulation, whose clients see tokens when they exist."""
    views = [
        ClientView(each.arrival_ns, 0, each.first_token_ns, each.last_token_ns, each.tokens, each.reason)
        for each in metrics.requests.values()
    ]
    return _observed(views, metrics, decisions)


def _observed(views: Sequence[ClientView], metrics: RunMetrics, decisions: Decisions) -> Observed:
    done = [each for each in views if each.reason in ("stop", "length") and each.tokens]
    start_ns = min((each.arrival_ns for each in views), default=0)
    span_ns = max((each.last_ns for each in done), default=start_ns) - start_ns
    waited_ns = sum(each.admitted_ns - each.arrival_ns for each in metrics.requests.values() if each.admitted_ns)
    several = [each for each in done if each.tokens > 1]
    found = {
        **_spread("ttft", (each.first_ns - each.arrival_ns for each in done)),
        **_spread("tpot", ((each.last_ns - each.first_ns) / (each.tokens - 1) for each in several)),
        **_spread("e2e", (each.last_ns - each.arrival_ns for each in done)),
        "output_tokens_per_s": sum(each.tokens for each in done) * NS_PER_S / span_ns if span_ns else 0.0,
        "mean_queue": waited_ns / span_ns if span_ns else 0.0,
    }
    return Observed(found, decisions.made, metrics.swaps, metrics.recomputes, metrics.steps, len(done))


def _spread(name: str, values_ns: Iterable[float]) -> dict[str, float]:
    values = list(values_ns)
    mean_ms = sum(values) / len(values) / NS_PER_MS if values else 0.0
    (p99,) = percentiles(values, (0.99,))
    return {f"{name}_mean_ms": mean_ms, f"{name}_p99_ms": float(p99 or 0) / NS_PER_MS}
