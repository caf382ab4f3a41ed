"""Tries the catalogue on recorded traffic, and says which policy and options meet the objectives best.

    from stepwell.sim.whatif.advise import advise
    from stepwell.sim.whatif.traffic import read_traffic
    found = advise(read_traffic([Path("night.jsonl")], overrides=["classes.chat.ttft_ms=500"]), folder=Path("advice"))
    print(found.verdict, found.best, found.toml)

Every contender serves the same requests at the same times, in the simulator and with one model of step times.  Then
allocators are tried with the best, and the highest rate that holds is searched for the best and for what runs now.
Where nothing meets the objectives, the best one is run again with more of each thing that may limit it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

import stepwell
from stepwell.core.config import Config, WorkloadConfig
from stepwell.core.errors import UserError
from stepwell.core.registry import complete
from stepwell.sim.compare.analysis import Samples
from stepwell.sim.compare.cache import Cache
from stepwell.sim.compare.knee import SLO
from stepwell.sim.compare.measures import METRICS
from stepwell.sim.compare.records import Axes, Cell, Contender, Point
from stepwell.sim.compare.runners import Runner, cores, in_processes
from stepwell.sim.compare.tasks import CellDone, Failed, KneeDone, KneeTask, RunTask, Saturated, SaturateTask
from stepwell.sim.compare.work import Progress, Work
from stepwell.sim.whatif.advice import VERSION, Advice, Distance, Headroom, Relief, Standing, toml_of
from stepwell.sim.whatif.catalogue import allocators, catalogue, knows_the_future
from stepwell.sim.whatif.judging import distance, limits, ranked, reasons, verdict
from stepwell.sim.whatif.traffic import Traffic
from stepwell.sim.workload.kept import write_workload

SHARE = 0.95
LATEST = 2_000
MINUTES = 10.0
SEARCHED = 3
"""Contenders whose highest rate is searched, and with which allocators are tried, beside what runs now."""

TOLERANCE = 0.05
"""Of a highest rate, relative."""

TRAFFIC = "workload.jsonl"
_POINT = Point()
_LATE = "no time was left for it"


def advise(
    traffic: Traffic,
    *,
    folder: Path,
    policies: Sequence[str] = (),
    share: float = SHARE,
    keep: bool = False,
    jobs: int = 0,
    minutes: float = MINUTES,
    progress: Progress | None = None,
) -> Advice:
    """``share`` of the requests of every class with objectives is to meet them.  ``folder`` takes the traffic, and with
    ``keep`` finished runs, which count again the next time.  What was not begun after ``minutes`` is left out.

    Raises ``UserError`` if no class has objectives, or what runs now cannot be simulated.
    """
    if not 0 < share <= 1:
        raise UserError(f"must be above 0 and at most 1, not {share:g}", field="share")
    judged = [each for each in traffic.config.classes if each.ttft_ms or each.tpot_ms]
    if not any(request.klass == each.name for each in judged for request in traffic.workload.requests):
        raise UserError(
            "no class of these requests has objectives to meet; give some, such as --slo chat.ttft_ms=500",
            field="slo",
        )
    scheduler = traffic.config.scheduler
    if knows_the_future(scheduler.policy, scheduler.options):
        raise UserError(
            f"the recorded {scheduler.policy} knows the future, which nobody does while serving: say what runs, as"
            " --set scheduler.options.predictor=quantile",
            field="scheduler.options",
        )
    until_s = time.monotonic() + 60 * minutes
    runner = until(in_processes(jobs or cores()), until_s, time.monotonic)
    return _Advising(traffic, folder, share, Work(runner, Cache(folder if keep else None), progress)).answer(policies)


def until(runner: Runner, until_s: float, now_s: Callable[[], float]) -> Runner:
    """The same runner, which gives up what is not done by ``until_s``; that has failed."""

    def run(tasks: Sequence[bytes]) -> Iterator[tuple[int, bytes]]:
        left = dict.fromkeys(range(len(tasks)))
        if now_s() < until_s:
            for place, outcome in runner(tasks):
                del left[place]
                yield place, outcome
                if now_s() >= until_s:
                    break
        for place in left:
            yield place, msgspec.json.encode(Failed(_LATE))

    return run


class _Advising:
    """One piece of advice being made."""

    def __init__(self, traffic: Traffic, folder: Path, share: float, work: Work) -> None:
        self._traffic = traffic
        self._share = share
        self._work = work
        self._notes = list(traffic.notes)
        file = (folder / TRAFFIC).resolve()
        write_workload(traffic.workload, file)
        self._config = msgspec.structs.replace(
            traffic.config,
            cost=traffic.times.cost,
            workload=WorkloadConfig(kind="trace", format="workload", trace=str(file)),
        )
        self._digest = traffic.workload.digest()
        self._seed = traffic.config.scheduler.seed
        offered = dict.fromkeys(each.klass for each in traffic.workload.requests)
        self._classes = [each for each in traffic.config.classes if each.name in offered]
        self._judged = [each.name for each in self._classes if each.ttft_ms or each.tpot_ms]

    def answer(self, policies: Sequence[str]) -> Advice:
        traffic = self._traffic
        tried = catalogue(traffic.config, traffic.times.fallback, policies)
        now = tried[0].label
        cells = self._run("trying policies", tried)
        if now not in cells:
            raise UserError(f"{now} cannot be simulated: {self._notes[-1]}", field="file")
        standings = ranked(self._standings(tried, cells), now)
        if traffic.workload.key_tokens:
            more = self._with_allocators(standings)
            cells |= self._run("trying allocators", more)
            tried = [*tried, *more]
        else:
            self._notes.append("the record tells no shared prefixes, so allocators were not compared")
        standings = ranked(self._standings(tried, cells), now)
        saturated = self._saturated(tried[0])
        standings = self._searched(standings, now, saturated)
        best, current = standings[0], next(each for each in standings if each.contender.label == now)
        found = verdict(best, current)
        rate_per_s = traffic.workload.profile().rate_per_s
        reliefs = self._reliefs(best) if found == "none" else []
        told = reasons(found, best, current, self._share, len(traffic.workload))
        if found == "none":
            told += limits(best, reliefs, rate_per_s, saturated)
        better = best.distance is not None and best.distance.better
        chosen = best if found == "change" or (found == "none" and better) else current
        return Advice(
            version=VERSION,
            stepwell=stepwell.__version__,
            sources=traffic.sources,
            requests=len(traffic.workload),
            requests_in_all=traffic.requests_in_all,
            rate_per_s=rate_per_s,
            saturated_per_s=saturated,
            classes=self._classes,
            share=self._share,
            now=now,
            best=best.contender.label,
            verdict=found,
            standings=standings,
            reliefs=reliefs,
            reasons=told,
            toml=toml_of(chosen.contender),
            step_times=traffic.times.told,
            notes=list(dict.fromkeys(self._notes)),
        )

    # ------------------------------------------------------------------------------------------------ runs

    def _of(self, it: Contender, changes: Mapping[str, int] | None = None) -> Config:
        replace, config = msgspec.structs.replace, self._config
        scheduler = replace(config.scheduler, policy=it.policy, options=it.options)
        memory = replace(config.memory, allocator=it.allocator, options=it.allocator_options)
        for key, value in (changes or {}).items():
            section, _, field = key.partition(".")
            if section == "memory":
                memory = replace(memory, **{field: value})
            else:
                scheduler = replace(scheduler, **{field: value})
        return complete(replace(config, scheduler=scheduler, memory=memory))

    def _task(self, it: Contender, changes: Mapping[str, int] | None = None) -> RunTask:
        config = self._of(it, changes)
        return RunTask(config, it.label, _POINT, self._seed, f"{config.digest} {self._digest}", [], sections=True)

    def _run(self, what: str, contenders: Sequence[Contender]) -> dict[str, Cell]:
        """By label; what failed is noted."""
        found: dict[str, Cell] = {}
        outcomes = self._work.do(what, [self._task(each) for each in contenders])
        for each, outcome in zip(contenders, outcomes, strict=True):
            if isinstance(outcome, CellDone):
                found[each.label] = outcome.cell
            elif isinstance(outcome, Failed):
                self._notes.append(f"{each.label} is left out: {outcome.error}")
        return found

    def _with_allocators(self, standings: Sequence[Standing]) -> list[Contender]:
        names = allocators(self._traffic.config)
        return [
            Contender(f"{it.label} + {name}".replace(" (now)", ""), it.policy, name, it.options)
            for it in (each.contender for each in standings[:SEARCHED])
            for name in names
        ]

    def _saturated(self, now: Contender) -> float | None:
        config = self._of(now)
        (outcome,) = self._work.do("measuring the saturated rate", [SaturateTask(config, self._digest)])
        return outcome.rate_per_s if isinstance(outcome, Saturated) else None

    def _searched(self, standings: Sequence[Standing], now: str, saturated: float | None) -> list[Standing]:
        """The same, with the headroom of a few."""
        rate_per_s = self._traffic.workload.profile().rate_per_s
        wanted = [each for at, each in enumerate(standings) if at < SEARCHED or each.contender.label == now]
        if not saturated or not rate_per_s:
            return list(standings)
        slo = SLO(self._share, TOLERANCE, saturated)
        tasks = [
            KneeTask(
                self._of(each.contender), each.contender.label, "all", self._seed, self._digest, slo,
                [(rate_per_s, each.attainment)],
            )
            for each in wanted
        ]  # fmt: skip
        rooms: dict[str, Headroom] = {}
        for each, outcome in zip(wanted, self._work.do("searching the highest rate", tasks), strict=True):
            if isinstance(outcome, KneeDone):
                knee = outcome.knee
                rooms[each.contender.label] = Headroom(knee.rate_per_s, knee.rate_per_s / rate_per_s, knee.bound)
            elif isinstance(outcome, Failed):
                self._notes.append(f"no highest rate of {each.contender.label}: {outcome.error}")
        return [msgspec.structs.replace(each, headroom=rooms.get(each.contender.label)) for each in standings]

    def _reliefs(self, best: Standing) -> list[Relief]:
        """The best with twice of each thing that may limit."""
        config = self._of(best.contender)
        scheduler, pages = config.scheduler, config.memory.pages
        seats, tokens = 2 * scheduler.running_limit, 2 * scheduler.token_budget
        changes: list[tuple[str, int, int, dict[str, int]]] = [
            ("memory.pages", pages, 2 * pages, {"memory.pages": 2 * pages}),
            ("scheduler.token_budget", scheduler.token_budget, tokens, {"scheduler.token_budget": tokens}),
            (
                "scheduler.running_limit",
                scheduler.running_limit,
                seats,
                {"scheduler.running_limit": seats, "scheduler.token_budget": max(seats, scheduler.token_budget)},
            ),
        ]
        tasks = [self._task(best.contender, change) for *_, change in changes]
        outcomes = self._work.do("asking what limits", tasks)
        return [
            Relief(key, before, after, outcome.cell.summary.all.slo_attainment or 0.0)
            for (key, before, after, _), outcome in zip(changes, outcomes, strict=True)
            if isinstance(outcome, CellDone)
        ]

    # ------------------------------------------------------------------------------------------------ standings

    def _standings(self, tried: Sequence[Contender], cells: Mapping[str, Cell]) -> list[Standing]:
        there = [each for each in tried if each.label in cells]
        axes = Axes(there, tried[0].label, [_POINT], [self._seed], ["all"], METRICS, self._classes)
        told = {
            each.contender: distance(each, len(there) - 1)
            for each in Samples([cells[each.label] for each in there], axes).differences()
            if (each.scope, each.metric) == ("all", "slo_attainment")
        }
        return [self._standing(each, cells[each.label], told.get(each.label)) for each in there]

    def _standing(self, it: Contender, cell: Cell, apart: Distance | None) -> Standing:
        summary = cell.summary
        attained = {
            each.name: each.slo_attainment
            for each in summary.classes
            if each.name in self._judged and each.slo_attainment is not None
        }
        meets = bool(attained) and min(attained.values()) >= self._share
        return Standing(it, summary, attained, meets, apart)
