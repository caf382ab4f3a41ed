"""A comparison from question to answer; for notebooks and the command line alike.

    from stepwell.sim.compare.run import compare
    found = compare("scenario.toml", policies=["fcfs", "sarathi"], loads=[0.5, 0.9], seeds=5)
    found.frame()                # one row a contender, load and metric, with mean and interval

All contenders get the same requests: a seed decides a workload, a load or rate scales it, and policies have no say.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import msgspec

import stepwell
from stepwell.core.config import Config
from stepwell.core.config_load import to_toml
from stepwell.core.errors import UserError
from stepwell.sim.compare import question as asking
from stepwell.sim.compare.analysis import Samples, intervals_told, make_knee, short_told, step_times_told
from stepwell.sim.compare.cache import Cache
from stepwell.sim.compare.knee import SLO, round_rate
from stepwell.sim.compare.measures import METRICS
from stepwell.sim.compare.on_ray import on_ray
from stepwell.sim.compare.question import TABLE, Choice, Question
from stepwell.sim.compare.result import (
    VERSION,
    Axes,
    Cell,
    Comparison,
    Contender,
    Failure,
    Knee,
    Point,
    SeedKnee,
    SeedWorkload,
)
from stepwell.sim.compare.runners import MOST_JOBS, Runner, cores, in_processes
from stepwell.sim.compare.scenarios import Scenarios, digest
from stepwell.sim.compare.tasks import (
    BODY_PERCENT,
    CellDone,
    Failed,
    KneeDone,
    KneeTask,
    RunTask,
    Saturated,
    SaturateTask,
)
from stepwell.sim.compare.work import Progress, Work
from stepwell.sim.workload.kinds import KINDS


def compare(
    scenario: str | os.PathLike[str] | None = None,
    *,
    policies: Sequence[str | Choice | Mapping[str, Any]] | None = None,
    allocators: Sequence[str | Choice | Mapping[str, Any]] | None = None,
    loads: Sequence[float] | None = None,
    rates: Sequence[float] | None = None,
    seeds: int | Sequence[int] | None = None,
    baseline: str | None = None,
    slo_share: float | None = None,
    slo_scope: str | None = None,
    tolerance: float | None = None,
    overrides: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    jobs: int = 0,
    on: str = "",
    folder: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Run every contender at every point with every seed, and say what came of it.

    What is to be compared is in the table ``[compare]`` of the scenario (see ``question``); arguments that are given
    replace its values.  ``overrides`` are written ``memory.pages=3000``.  ``jobs`` processes are used (0: one a core),
    or a cluster: ``on`` is ``ray``, or ``ray:ADDRESS``.  ``folder`` keeps finished runs for the next time.

    A run that fails is among ``failures``, and the others count.  Raises ``UserError`` for a question that cannot be
    asked.
    """
    changes = {
        "policies": policies,
        "allocators": allocators,
        "loads": loads,
        "rates": rates,
        "seeds": seeds,
        "baseline": baseline,
        "slo_share": slo_share,
        "slo_scope": slo_scope,
        "tolerance": tolerance,
    }
    file = Path(scenario) if scenario is not None else None
    question = asking.read_question(file, {key: value for key, value in changes.items() if value is not None})
    work = Work(_runner(jobs, on), Cache(Path(folder) if folder is not None else None), progress)
    return _Comparing(Scenarios(file, overrides, environ), question, work).answer()


def _runner(jobs: int, on: str) -> Runner:
    if not 0 <= jobs <= MOST_JOBS:
        raise UserError(f"must be between 0 (one a core) and {MOST_JOBS}, not {jobs}", field="jobs")
    if not on:
        return in_processes(jobs or cores())
    where, _, address = on.partition(":")
    if where != "ray":
        raise UserError(f"unknown place {on!r}. Allowed: ray, ray:ADDRESS", field="on")
    return on_ray(address or "auto")


@dataclass(frozen=True)
class _Seeded:
    """The requests of a seed; None is the scenario's own."""

    seed: int | None
    workload: SeedWorkload


class _Comparing:
    """One comparison being made."""

    def __init__(self, scenarios: Scenarios, question: Question, work: Work) -> None:
        self._scenarios = scenarios
        self._question = question
        self._work = work
        self._contenders = asking.contenders(question, scenarios.base.config)
        self._baseline = asking.baseline(question, self._contenders)
        self._by_label = {each.label: each for each in self._contenders}
        self._notes: list[str] = []
        self._failures: list[Failure] = []
        self._check()

    def _check(self) -> None:
        """Refuse early what would fail in every run."""
        classes = {each.name: each for each in self._scenarios.base.config.classes}
        if "all" in classes:
            raise UserError("'all' stands for every class here; give the class another name", field="classes")
        scope = self._question.slo_scope
        judged = classes.values() if scope == "all" else [classes[scope]] if scope in classes else []
        if self._question.slo_share and not any(each.ttft_ms or each.tpot_ms for each in judged):
            what = "no class has" if scope == "all" else f"there is no class {scope!r} with"
            raise UserError(
                f"{what} objectives (ttft_ms, tpot_ms) that a rate could hold; defined: {', '.join(classes)}",
                field=f"{TABLE}.slo_scope",
            )
        asked = self._question
        kind = self._scenarios.base.config.workload.kind
        if kind in KINDS and not KINDS[kind].paced and (asked.loads or asked.rates or asked.slo_share):
            raise UserError(
                f"requests of {kind!r} come at their own pace, which no load or rate can set; leave out loads, rates"
                " and slo_share, and compare scenarios with more of them",
                field=f"{TABLE}.loads",
            )
        runs = len(self._contenders) * (len(asked.loads or asked.rates) or 1) * len(asking.seeds(asked) or [None])
        if runs > asking.MOST_RUNS:
            raise UserError(f"asks for {runs} runs; at most {asking.MOST_RUNS} are made", field=TABLE)
        for contender in self._contenders:
            self._scenarios.config(self._scenarios.overrides(contender, None, None))

    def answer(self) -> Comparison:
        workloads = self._workloads()
        follow = any(each.workload.followers for each in workloads)
        if follow and self._question.loads:
            raise UserError(
                "requests of this workload follow others, and when they come depends on the policy: no rate is a share"
                " of what the device can do. Give rates (--rate): of programs, which begin by the clock",
                field=f"{TABLE}.loads",
            )
        saturated = self._saturated(workloads[0])
        points = asking.points(self._question, saturated)
        cells = self._cells(points, workloads)
        axes = self._axes(points, workloads, None if follow else saturated, cells)
        knees = self._knees(cells, workloads, saturated)
        samples = Samples(cells, axes)
        config = self._scenarios.base.config
        asked = [config.digest, self._question, axes, [each.workload.digest for each in workloads]]
        return Comparison(
            version=VERSION,
            stepwell=stepwell.__version__,
            scenario=str(self._scenarios.file or ""),
            config=to_toml(config),
            digest=hashlib.sha256(msgspec.json.encode(asked, order="sorted")).hexdigest(),
            workloads=[each.workload for each in workloads],
            axes=axes,
            cells=cells,
            failures=self._failures,
            rows=samples.rows(),
            differences=samples.differences(),
            rankings=samples.rankings(),
            knees=knees,
            notes=[*self._notes, intervals_told(cells, axes), step_times_told(cells), *self._scenarios.notes],
        )

    def _workloads(self) -> list[_Seeded]:
        """By seed; a workload that no seed changes is run once."""
        wanted = asking.seeds(self._question)
        made = [_Seeded(seed, self._scenarios.workload(seed)) for seed in (wanted if wanted is not None else [None])]
        if len(made) > 1 and len({each.workload.digest for each in made}) == 1:
            self._notes.append(
                "the workload is the same with every seed, as one that was recorded is: only the first seed is run"
            )
            return made[:1]
        return made

    def _saturated(self, first: _Seeded) -> float | None:
        """How fast the baseline completes requests when all requests are there at once; None if nobody asks.  Of
        programs where requests follow others: where a search begins, and no more.
        """
        if not (self._question.loads or self._question.slo_share):
            return None
        config = self._config(self._by_label[self._baseline], first.seed, None)[1]
        (outcome,) = self._work.do(
            "measuring the saturated rate", [SaturateTask(config, digest(config, first.workload))]
        )
        if not isinstance(outcome, Saturated):
            told = outcome.error if isinstance(outcome, Failed) else "nothing"
            raise UserError(f"the saturated rate cannot be measured: {told}", field=f"{TABLE}.baseline")
        workload = first.workload
        if workload.followers:
            return round_rate(outcome.rate_per_s * workload.by_clock / workload.requests)
        rate_per_s = round_rate(outcome.rate_per_s)
        self._notes.append(
            f"load 1 is {rate_per_s:g} requests/s: as fast as {self._baseline} completes the first {BODY_PERCENT} %"
            f" when all requests of seed {workload.seed} arrive at once"
        )
        return rate_per_s

    def _config(self, contender: Contender, seed: int | None, point: Point | None) -> tuple[list[str], Config]:
        overrides = self._scenarios.overrides(contender, seed, point)
        return overrides, self._scenarios.config(overrides)

    def _cells(self, points: Sequence[Point], workloads: Sequence[_Seeded]) -> list[Cell]:
        tasks: list[RunTask] = []
        for contender, point, seeded in product(self._contenders, points, workloads):
            overrides, config = self._config(contender, seeded.seed, point)
            tasks.append(
                RunTask(
                    config=config,
                    contender=contender.label,
                    point=point,
                    seed=seeded.workload.seed,
                    digest=digest(config, seeded.workload),
                    overrides=overrides,
                    sections=len(workloads) == 1,
                )
            )
        cells = []
        for task, outcome in zip(tasks, self._work.do("simulating", tasks), strict=True):
            if isinstance(outcome, CellDone):
                cells.append(outcome.cell)
            elif isinstance(outcome, Failed):
                command = self._scenarios.command(task.overrides)
                self._failures.append(Failure(task.contender, task.point, task.seed, outcome.error, command))
        return cells

    def _axes(
        self, points: list[Point], workloads: Sequence[_Seeded], saturated: float | None, cells: Sequence[Cell]
    ) -> Axes:
        config, question = self._scenarios.base.config, self._question
        offered = {each.name for cell in cells for each in cell.summary.classes}
        classes = [each for each in config.classes if each.name in offered]
        tenants = sorted({each.name for cell in cells for each in cell.tenants})
        return Axes(
            contenders=self._contenders,
            baseline=self._baseline,
            points=points,
            seeds=[each.workload.seed for each in workloads],
            scopes=["all", *([each.name for each in classes] if len(classes) > 1 else [])],
            metrics=METRICS,
            classes=classes,
            tenants=tenants if len(tenants) > 1 else [],
            saturated_per_s=saturated,
            slo_share=question.slo_share or None,
            tolerance=question.tolerance if question.slo_share else None,
        )

    def _knees(self, cells: Sequence[Cell], workloads: Sequence[_Seeded], saturated: float | None) -> list[Knee]:
        question = self._question
        if not question.slo_share or not saturated:
            return []
        slo = SLO(question.slo_share, question.tolerance, saturated)
        tasks = []
        for contender, seeded in product(self._contenders, workloads):
            config = self._config(contender, seeded.seed, None)[1]
            known = _known(cells, contender.label, seeded.workload.seed, question.slo_scope)
            tasks.append(
                KneeTask(
                    config=config,
                    contender=contender.label,
                    scope=question.slo_scope,
                    seed=seeded.workload.seed,
                    digest=digest(config, seeded.workload),
                    slo=slo,
                    known=known,
                )
            )
        found: dict[str, list[SeedKnee]] = {}
        for task, outcome in zip(tasks, self._work.do("searching the highest rate", tasks), strict=True):
            if isinstance(outcome, KneeDone):
                found.setdefault(task.contender, []).append(outcome.knee)
            elif isinstance(outcome, Failed):
                self._notes.append(f"no knee of {task.contender} with seed {task.seed}: {outcome.error}")
        by_clock = {each.workload.seed: each.workload.by_clock for each in workloads}
        self._notes += short_told(found, by_clock)
        base = found.get(self._baseline, [])
        return [make_knee(label, question.slo_scope, mine, base) for label, mine in found.items()]


def _known(cells: Sequence[Cell], contender: str, seed: int, scope: str) -> list[tuple[float, float]]:
    """Rates and attainments that cells have shown already."""
    found = []
    for cell in cells:
        rate = cell.point.rate_per_s
        if rate is not None and (cell.contender, cell.seed) == (contender, seed):
            for each in (cell.summary.all, *cell.summary.classes):
                if each.name == scope and each.slo_attainment is not None:
                    found.append((rate, each.slo_attainment))
    return found
