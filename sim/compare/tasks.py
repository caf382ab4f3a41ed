"""The runs that a comparison is made of, each a message that any process can carry out from the message alone.

``perform`` takes a task and gives an outcome, both as JSON, and depends on nothing else: not on the process, its
neighbours, or what it did before.  That is why one process, many, and a cluster give the same bytes.
"""

from __future__ import annotations

import msgspec

from stepwell.core.config import Config
from stepwell.core.config_load import Resolved
from stepwell.core.errors import StepwellError, UserError, describe
from stepwell.core.types import NS_PER_S
from stepwell.sim.compare.cell import make_cell
from stepwell.sim.compare.knee import SLO, find_knee
from stepwell.sim.compare.records import Cell, Point, SeedKnee
from stepwell.sim.run import simulate
from stepwell.sim.scenario import load_workload
from stepwell.sim.series import Series
from stepwell.sim.summary import COMPLETED
from stepwell.sim.workload.transform import all_at_once

BODY_PERCENT = 90
_MANY = 1 << 40


class RunTask(msgspec.Struct, frozen=True, tag="run"):
    """One cell.  ``config`` is whole: files in it are named so that they are found from anywhere on this machine."""

    config: Config
    contender: str
    point: Point
    seed: int
    digest: str
    overrides: list[str]
    sections: bool


class KneeTask(msgspec.Struct, frozen=True, tag="knee"):
    """The knee of a contender with a seed.  ``known``: rates and attainments that cells have found already."""

    config: Config
    contender: str
    scope: str
    seed: int
    digest: str
    slo: SLO
    known: list[tuple[float, float]]


class SaturateTask(msgspec.Struct, frozen=True, tag="saturate"):
    """How many requests a second are completed when all arrive at once."""

    config: Config
    digest: str


Task = RunTask | KneeTask | SaturateTask


class CellDone(msgspec.Struct, frozen=True, tag="cell"):
    cell: Cell


class KneeDone(msgspec.Struct, frozen=True, tag="knee"):
    knee: SeedKnee


class Saturated(msgspec.Struct, frozen=True, tag="saturated"):
    rate_per_s: float


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """What went wrong, in one line."""

    error: str


Outcome = CellDone | KneeDone | Saturated | Failed

_TASK: msgspec.json.Decoder[Task] = msgspec.json.Decoder(Task)
_OUTCOME: msgspec.json.Decoder[Outcome] = msgspec.json.Decoder(Outcome)


def encode(task: Task) -> bytes:
    return msgspec.json.encode(task)


def decode_outcome(data: bytes) -> Outcome:
    """Raises ``msgspec.DecodeError`` for bytes that are none."""
    return _OUTCOME.decode(data)


def perform(data: bytes) -> bytes:
    """Carry out an encoded task; whatever it raises becomes its outcome."""
    task = _TASK.decode(data)
    outcome: Outcome
    try:
        if isinstance(task, RunTask):
            outcome = CellDone(_run(task))
        elif isinstance(task, KneeTask):
            outcome = KneeDone(find_knee(task.seed, task.slo, task.known, lambda rate: _attainment(task, rate)))
        else:
            outcome = Saturated(_saturated(task.config))
    except StepwellError as error:
        outcome = Failed(f"{type(error).__name__}: {error}")
    except Exception as error:
        outcome = Failed(describe(error))
    return msgspec.json.encode(outcome)


def _run(task: RunTask) -> Cell:
    series = Series()
    result = simulate(task.config, observers=[series.observe])
    return make_cell(
        result,
        series,
        contender=task.contender,
        point=task.point,
        seed=task.seed,
        digest=task.digest,
        overrides=task.overrides,
        sections=task.sections,
    )


def _attainment(task: KneeTask, rate_per_s: float) -> float:
    config = task.config
    at_rate = msgspec.structs.replace(config, workload=msgspec.structs.replace(config.workload, rate=rate_per_s))
    summary = simulate(at_rate).summary
    scope = next((each for each in (summary.all, *summary.classes) if each.name == task.scope), None)
    if scope is None or scope.slo_attainment is None:
        raise UserError(f"no request of {task.scope!r} can be judged", field="compare.slo_scope")
    return scope.slo_attainment


def _saturated(config: Config) -> float:
    """With a waiting line that takes them all.  Over the first of those that complete: the last have the device almost
    for themselves, and in a short workload they would take as long as all others.
    """
    replace = msgspec.structs.replace
    roomy = replace(
        config,
        scheduler=replace(config.scheduler, max_waiting=_MANY, max_waiting_tokens=_MANY),
        classes=tuple(replace(each, queue_share=1.0) for each in config.classes),
        workload=replace(config.workload, rate=0.0),
    )
    workload = all_at_once(load_workload(Resolved(roomy, {})))
    records = simulate(roomy, workload=workload).metrics.requests.values()
    ends_ns = sorted(each.finished_ns for each in records if each.reason in COMPLETED)
    most = -(-len(ends_ns) * BODY_PERCENT // 100)
    if not most:
        raise UserError("no request completes", field="workload")
    return most * NS_PER_S / ends_ns[most - 1]
