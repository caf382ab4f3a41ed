"""What a fidelity study runs: which policies, at which loads, on which requests, and where the files of it are.

The requests come in two halves from one generator.  The cost model is fitted to live runs of the first; the second is
run under every policy, several times, and predicted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from stepwell.core.config import Config
from stepwell.core.errors import UserError
from stepwell.core.registry import complete, make_policy
from stepwell.core.types import NS_PER_S
from stepwell.sim.scenario import read_scenario
from stepwell.sim.workload.generate import ClassMix, Synthetic, generate
from stepwell.sim.workload.mixes import Lengths
from stepwell.sim.workload.rates import Arrivals
from stepwell.sim.workload.request import Workload
from stepwell.sim.workload.transform import scale_rate

Half = Literal["capacity", "fit", "test"]

HOUSE = (
    "scheduler.running_limit=16",
    "scheduler.token_budget=64",
    "scheduler.max_context=256",
    "memory.allocator=paged",
    "memory.page_size=8",
    "memory.pages=64",
    "memory.host_pages=256",
)
"""Pages run out before seats do: about ten requests of the workload fill them."""

MIX = (
    ClassMix(Lengths(32, 0.7, 8, 96), Lengths(16, 0.6, 2, 48), "chat", 0.7),
    ClassMix(Lengths(56, 0.5, 16, 96), Lengths(24, 0.5, 4, 48), "batch", 0.3),
)
"""Short ones, since a small machine takes a good part of a second for a step of a small model."""
POLICIES = ("fcfs", "swap", "chat-batch", "srpt", "sjf", "mlfq", "vtc", "edf", "sarathi", "past-future")
LOADS = (0.5, 0.9, 1.3)
FIT_POLICIES = ("swap", "fcfs")
"""One that swaps and one that recomputes, so that both are measured."""
STEADY = 0.9
"""Below this load a run has fewer requests, or it would take longer than any other."""


class Study(msgspec.Struct, frozen=True, kw_only=True):
    """All that a study's runs depend on.  ``loads`` are in parts of the capacity, which is measured first."""

    model: str = "smollm2"
    policies: tuple[str, ...] = POLICIES
    loads: tuple[float, ...] = LOADS
    requests: int = 32
    runs: int = 2
    seed: int = 0
    settings: tuple[str, ...] = ()
    """Of the configuration, as ``memory.pages=64``."""

    @property
    def digest(self) -> str:
        """Identifies what single runs depend on: more policies, loads or runs may be added to a study."""
        told = [self.model, self.requests, self.seed, list(self.settings), list(HOUSE), msgspec.to_builtins(MIX)]
        return hashlib.sha256(msgspec.json.encode(told)).hexdigest()[:16]


class Cell(msgspec.Struct, frozen=True):
    """One live run.  ``load`` is 0 for the capacity run, in which all requests arrive at once."""

    half: Half
    policy: str
    load: float
    run: int = 0

    @property
    def name(self) -> str:
        word = "".join(each if each.isalnum() or each in "-_" else "-" for each in self.policy)
        return f"{self.half}-{word}-{self.load:g}-{self.run}"

    @property
    def house(self) -> tuple[str, float]:
        """What the runs of one cell of the table share."""
        return self.policy, self.load


def check(study: Study) -> None:
    """Raises ``UserError`` for a study that cannot be run."""
    for name in ("requests", "runs"):
        if getattr(study, name) < 1:
            raise UserError(f"must be at least 1, got {getattr(study, name)}", field=name)
    if not study.policies or not study.loads:
        raise UserError("a study needs a policy and a load", field="policies")
    if min(study.loads) <= 0 or max(study.loads) > 10:
        raise UserError("loads are in parts of the capacity, above 0 and at most 10", field="loads")
    config_of(study, study.policies[0])
    for policy in study.policies:
        made = make_policy(policy)
        if getattr(getattr(made, "predictor", None), "simulation_only", False):
            raise UserError(f"{policy} knows the future and cannot be served", field="policies")


def config_of(study: Study, policy: str) -> Config:
    """The configuration of one run, complete."""
    own = (f"model.path={study.model}", f"scheduler.policy={policy}", f"scheduler.seed={study.seed}")
    return complete(read_scenario(None, overrides=[*HOUSE, *study.settings, *own]).config)


def workload_of(study: Study, cell: Cell, capacity: float) -> Workload:
    """The requests of a run; every policy and every run at a load get the same.  ``capacity`` in requests/s."""
    half = 2 * study.seed + (cell.half == "test")
    load = cell.load or 1.0
    count = max(4, round(study.requests * min(1.0, load / STEADY)))
    made = generate(Synthetic(Arrivals(1.0), MIX, count=count, seed=half, name=f"{cell.half}-{cell.load:g}"))
    if not cell.load:
        at_once = [msgspec.structs.replace(each, arrival_ns=0) for each in made.requests]
        return Workload(made.name, at_once)
    return scale_rate(made, capacity * load)


def capacity_cell() -> Cell:
    return Cell("capacity", FIT_POLICIES[0], 0.0)


def fit_cells(study: Study, run: int) -> Iterator[Cell]:
    """Every load with swaps; the highest with recomputes too, where they happen."""
    for load in study.loads:
        yield Cell("fit", FIT_POLICIES[0], load, run)
    yield Cell("fit", FIT_POLICIES[1], max(study.loads), run)


def predicted_cells(study: Study) -> Iterator[Cell]:
    """Everything that is predicted."""
    for run in range(study.runs):
        for load in study.loads:
            for policy in study.policies:
                yield Cell("test", policy, load, run)


def in_order(study: Study) -> Iterator[Cell]:
    """All live runs in the order in which they are made: the capacity, then everything once, then again backwards.

    So what drifts shows as the spread between two runs, and not as a difference between policies.  The runs that the
    cost model is fitted to lie among those that it is to predict, as a machine that is shared changes its speed within
    minutes.
    """
    yield capacity_cell()
    for run in range(study.runs):
        fits = list(fit_cells(study, run))
        cells: list[Cell] = []
        for load, fit in zip(study.loads, fits, strict=False):
            cells += [fit, *(Cell("test", policy, load, run) for policy in study.policies)]
        cells += fits[len(study.loads) :]
        yield from reversed(cells) if run % 2 else cells


def completed_per_s(ends_ns: Sequence[int]) -> float:
    """Requests/s of which the first arrived at 0 and these are the ends."""
    return len(ends_ns) * NS_PER_S / max(ends_ns)


def folder(out: Path, name: str) -> Path:
    made = out / name
    made.mkdir(parents=True, exist_ok=True)
    return made
