"""One simulation from configuration to result; for notebooks, sweeps and the command line alike.

    import stepwell
    result = stepwell.simulate("scenario.toml", overrides=["scheduler.policy=swap"])
    print(result.summary.all.ttft_ms.p99, result.summary.all.slo_attainment)
    slow = [each for each in result.metrics.requests.values() if each.preemptions > 2]
    result.frame()                          # a polars data frame, one row a request

The scenario may also be a ``Config`` made in Python, or nothing at all (every default).  ``workload`` replaces the one
that the configuration names.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from stepwell.core.build import build_scheduler, journal_header, make_shadow
from stepwell.core.config import Config, validate
from stepwell.core.config_load import Resolved
from stepwell.core.errors import InvariantError, UserError
from stepwell.core.journal_file import JournalWriter
from stepwell.core.registry import complete, make_cost_model
from stepwell.core.scheduler import Scheduler
from stepwell.core.shadow import ShadowReport
from stepwell.core.snapshot import capture
from stepwell.core.types import NS_PER_MS
from stepwell.sim.cost.room import check_pool
from stepwell.sim.foresight import asks, known_lengths, reveal
from stepwell.sim.frames import data_frame
from stepwell.sim.loop import Observer, Simulator
from stepwell.sim.metrics import RequestRecord, RunMetrics
from stepwell.sim.scenario import check_classes, fit_keys, load_workload, read_scenario
from stepwell.sim.summary import COMPLETED, Summary, summarise, tpot_ns
from stepwell.sim.workload.request import Workload

_MIB = 1 << 20

_SEARCH_AFTER = 20_000
"""Objects made and not gone, after which the search for cycles comes during a run."""


@dataclass(frozen=True)
class Result:
    """What a run was.  ``cpu_s`` is what the loop took of the processor; nothing else here depends on the machine.

    ``places[id - 1]`` is the place of a request in the workload, from 1: its id, unless requests follow others; then
    ids count arrivals, which differ between policies, and places are what two runs have in common.  ``lost_turns`` is
    above 0 if the journal's disk was full.  ``shadow`` is what a policy asked beside the one that decided would have
    done otherwise.
    """

    config: Config
    workload: Workload
    metrics: RunMetrics
    summary: Summary
    places: Sequence[int]
    cpu_s: float = 0.0
    lost_turns: int = 0
    shadow: ShadowReport | None = None

    def frame(self) -> Any:
        """A polars data frame with one row a request: ``RequestRecord`` and its latencies in ms, None where there is
        none.  Needs the extra ``research``.
        """
        records = list(self.metrics.requests.values())
        columns: dict[str, list[object]] = {
            name: [getattr(each, name) for each in records] for name in RequestRecord.__struct_fields__
        }
        done = [each if each.reason in COMPLETED else None for each in records]
        begun = [each if each.first_token_ns else None for each in records]
        columns["ttft_ms"] = [(r.first_token_ns - r.arrival_ns) / NS_PER_MS if r is not None else None for r in begun]
        columns["tpot_ms"] = [tpot_ns(r) / NS_PER_MS if r is not None and r.tokens >= 2 else None for r in done]
        columns["e2e_ms"] = [(r.last_token_ns - r.arrival_ns) / NS_PER_MS if r is not None else None for r in done]
        return data_frame(columns)


def simulate(
    scenario: Config | Resolved | str | os.PathLike[str] | None = None,
    *,
    overrides: Sequence[str] = (),
    workload: Workload | None = None,
    journal: str | os.PathLike[str] | None = None,
    observers: Sequence[Observer] = (),
    progress: Callable[[int], None] | None = None,
) -> Result:
    """Run a scenario to its end.

    ``overrides`` are written ``scheduler.policy=swap``; ``journal`` is a file to record every decision in;
    ``observers`` see every turn; ``progress`` is told now and then how many requests have arrived.  Raises
    ``UserError`` for a scenario that cannot be run and ``PolicyError`` for a policy that breaks a rule.
    """
    resolved = _resolved(scenario, overrides)
    if resolved.config.journal.level == "tokens":
        raise UserError(
            "a simulation has no tokens that it could record; it is to be 'decisions'", field="journal.level"
        )
    requests = load_workload(resolved) if workload is None else workload
    config = complete(resolved.config)
    check_classes(requests, config)
    cost = make_cost_model(config.cost)
    check_pool(cost, config.memory.pages, config.memory.page_size)
    shadow = make_shadow(config)
    scheduler = build_scheduler(config, shadow=shadow)
    allocator = scheduler.state.allocator
    requests = fit_keys(requests, allocator.key_tokens, wanted=getattr(allocator, "reuses_prefixes", False))
    policies = [scheduler.state.policy, *([shadow.policy] if shadow is not None else [])]
    told = asks(scheduler.state.policy)
    if any(map(asks, policies)):
        lengths = known_lengths(requests, config)
        for each in policies:
            reveal(each, lengths)
    metrics = RunMetrics()
    writer = open_writer(Path(journal), config, scheduler, told=told) if journal is not None else None
    watching: list[Observer] = [*([writer.observe] if writer else []), metrics.observe, *observers]
    try:
        simulator = Simulator(scheduler, cost, requests.requests, observers=watching)
        start = time.process_time()
        with _older_left_alone():
            simulator.run(progress)
        cpu_s = time.process_time() - start
    except InvariantError as error:
        where = f"; the journal up to there is {writer.path}" if writer else ""
        raise InvariantError(f"{error}{where}") from error
    finally:
        if writer:
            writer.close()
    return Result(
        config,
        requests,
        metrics,
        summarise(metrics, config, step_times=simulator.step_times),
        simulator.places,
        cpu_s=cpu_s,
        lost_turns=writer.lost_turns if writer else 0,
        shadow=shadow.report() if shadow is not None else None,
    )


@contextmanager
def _older_left_alone() -> Iterator[None]:
    """The search for cycles leaves out what was there before the run, all modules and the workload: with them each of
    the few full searches takes longer than a hundred requests.  It also comes seldom: what a turn makes is gone after a
    few turns, so that a search every 700 objects looks at what dies by itself."""
    ours = not gc.get_freeze_count()
    thresholds = gc.get_threshold()
    if ours:
        gc.freeze()
    if thresholds[0]:
        gc.set_threshold(max(thresholds[0], _SEARCH_AFTER), *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        if ours:
            gc.unfreeze()


def open_writer(path: Path, config: Config, scheduler: Scheduler, *, told: bool = False) -> JournalWriter:
    """A journal for a simulation under ``config`` (complete, as its digest identifies the run).

    ``told``: the policy knows something from the start, which is then written in the first segment's head.
    """
    header = journal_header(config, scheduler, "sim")
    if told:
        header.snapshot = msgspec.Raw(msgspec.json.encode(capture(scheduler)))
    try:
        return JournalWriter(
            path,
            header,
            lambda: msgspec.json.encode(capture(scheduler)),
            segment_bytes=config.journal.segment_mib * _MIB,
            keep_segments=config.journal.keep_segments,
        )
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}", field="journal") from None


def _resolved(scenario: Config | Resolved | str | os.PathLike[str] | None, overrides: Sequence[str]) -> Resolved:
    if isinstance(scenario, Config | Resolved):
        if overrides:
            raise UserError(
                "go with a file or with nothing; change a Config with msgspec.structs.replace", field="overrides"
            )
        return scenario if isinstance(scenario, Resolved) else Resolved(validate(scenario), {})
    return read_scenario(Path(scenario) if scenario is not None else None, overrides=overrides)
