"""What an oracle among a policy's parts is told: the true output lengths, by id."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stepwell.core.build import build_scheduler
from stepwell.core.config import Config
from stepwell.core.protocols import SchedulerPolicy
from stepwell.core.registry import make_cost_model
from stepwell.core.types import RequestId
from stepwell.sim.loop import Simulator
from stepwell.sim.workload.request import TraceRequest, Workload


class Lengths(Mapping[RequestId, int]):
    """Of those who have arrived so far, or in all; ``arrived`` is by id - 1, and may grow."""

    def __init__(self, arrived: Sequence[TraceRequest]) -> None:
        self._arrived = arrived

    def __getitem__(self, id: RequestId) -> int:
        if not 1 <= id <= len(self._arrived):
            raise KeyError(id)
        return self._arrived[id - 1].output_tokens

    def __iter__(self) -> Iterator[RequestId]:
        return iter(range(1, len(self._arrived) + 1))

    def __len__(self) -> int:
        return len(self._arrived)


def asks(policy: SchedulerPolicy | None) -> bool:
    """Whether there is an oracle among its parts."""
    return bool(getattr(getattr(policy, "predictor", None), "simulation_only", False))


def reveal(policy: SchedulerPolicy | None, lengths: Mapping[RequestId, int]) -> None:
    """Tell it, if it asks."""
    if asks(policy):
        predictor: Any = getattr(policy, "predictor", None)
        predictor.reveal(lengths)


def known_lengths(workload: Workload, config: Config) -> Mapping[RequestId, int]:
    """By id, before the run begins.

    Where requests follow others, ids count arrivals, which only a run tells.  So there is one before the run: the same
    one, whose policy is told as requests arrive.
    """
    if not workload.followers:
        return {id: each.output_tokens for id, each in enumerate(workload.requests, 1)}
    scheduler = build_scheduler(config)
    simulator = Simulator(scheduler, make_cost_model(config.cost), workload.requests)
    lengths = Lengths(simulator.arrived)
    reveal(scheduler.state.policy, lengths)
    simulator.run()
    return dict(lengths)
