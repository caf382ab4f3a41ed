"""A recorded run under another policy: what if last night had been decided otherwise?

    from stepwell.sim.whatif.counterfactual import what_if
    found = what_if("night.jsonl", ["scheduler.policy=chat-batch"])
    for each in found.differences.effects:
        print(each.scope, each.metric.label, each.effect, each.low, each.high)

The recorded requests come again, each at its time and with its length, and a client that left after some tokens leaves
after as many.  They are served twice in the simulator: by the policy that was recorded and by the other, with one model
of step times (``times``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

import stepwell
from stepwell.core.config import Config, JournalConfig, SchedulerConfig, WorkloadConfig
from stepwell.core.config_load import changed
from stepwell.core.errors import UserError
from stepwell.sim.run import Result, simulate
from stepwell.sim.summary import Summary
from stepwell.sim.whatif.differences import Differences, differences
from stepwell.sim.whatif.recorded import Recorded, read_recorded
from stepwell.sim.whatif.times import MODEL, StepTimeModel, step_times

VERSION = 1

Progress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and of how much."""


class Decided(msgspec.Struct, frozen=True):
    """By whom, and what came of it in the simulator."""

    policy: str
    options: dict[str, object]
    allocator: str
    summary: Summary


class Counterfactual(msgspec.Struct, frozen=True):
    """``own_model``: the journal was simulated, and the model is its own.

    ``coinciding``: of so much of the other run's steps the time is the recorded one's (1 for a simulated journal,
    whose model said it).  ``extrapolated``: so much lies beyond what the model was fitted on; None: it was not fitted.
    """

    version: int
    stepwell: str
    journal: str
    recorded_policy: str
    again: Decided
    other: Decided
    own_model: bool
    coinciding: float
    extrapolated: float | None
    differences: Differences
    step_times: str
    notes: list[str]


def what_if(
    path: str | os.PathLike[str],
    overrides: Sequence[str],
    *,
    model: str = MODEL,
    progress: Progress | None = None,
) -> Counterfactual:
    """The journal that begins at ``path`` with ``overrides`` (``scheduler.policy=swap``) upon its configuration.

    ``model`` is fitted where steps were not measured; ``cost.…`` among the overrides replaces it.  Raises ``UserError``
    for a journal that cannot be played again, and ``PolicyError`` for a policy that breaks a rule.
    """
    tell = progress or (lambda what, done, total: None)
    recorded = read_recorded(Path(path), lambda records: tell("reading", records, 0))
    base = bare(recorded.config)
    resolved = changed(base, overrides, source="the journal")
    given = resolved.config.cost if any(each.strip().startswith("cost.") for each in overrides) else None
    times = step_times(base, recorded.steps, live=recorded.live, given=given, model=model)
    return compared(recorded, base, resolved.config, times, tell)


def compared(recorded: Recorded, base: Config, wanted: Config, times: StepTimeModel, tell: Progress) -> Counterfactual:
    """The same, of what was read."""
    if not recorded.compared:
        raise UserError("no request both came and ended in it: there is nothing to compare", field="journal")
    runs: list[Result] = []
    for config, what in ((base, "the same policy again"), (wanted, wanted.scheduler.policy)):
        total = len(recorded.workload)

        def bar(done: int, what: str = what, total: int = total) -> None:
            tell(what, done, total)

        config = msgspec.structs.replace(config, cost=times.cost)
        runs.append(simulate(config, workload=recorded.workload, progress=bar))
    again, other = runs
    places = recorded.compared
    ids = [recorded.ids[place - 1] for place in places]
    first, second = ([run.metrics.requests[place] for place in places] for run in runs)
    found = differences(ids, [recorded.records[id] for id in ids], first, second, other.config)
    return Counterfactual(
        VERSION,
        stepwell.__version__,
        str(recorded.path),
        recorded.config.scheduler.policy,
        _decided(again),
        _decided(other),
        times.own,
        1.0 if times.own else other.summary.measured_share or 0.0,
        other.summary.extrapolated_share,
        found,
        times.told,
        recorded.notes + [each for each in other.workload.notes if each not in recorded.workload.notes],
    )


def bare(config: Config) -> Config:
    """A recorded run's configuration with nothing in it but what decides a simulation."""
    scheduler, default = config.scheduler, SchedulerConfig()
    return msgspec.structs.replace(
        config,
        scheduler=msgspec.structs.replace(scheduler, shadow=default.shadow, shadow_options=default.shadow_options),
        workload=WorkloadConfig(),
        journal=JournalConfig(),
    )


def _decided(run: Result) -> Decided:
    scheduler = run.config.scheduler
    return Decided(scheduler.policy, dict(scheduler.options), run.config.memory.allocator, run.summary)
