"""The traffic that advice is about: recorded requests, what runs now, and how long steps take.

From journals (one or several, played one after another) everything is known.  From the log of another server, or any
other trace, requests and lengths are, as they were logged; what runs there and how long its steps take has to be told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from stepwell.core.config import Config, CostConfig
from stepwell.core.config_load import changed, resolve
from stepwell.core.errors import UserError
from stepwell.sim.scenario import check_classes, read_scenario
from stepwell.sim.step_reader import MeasuredStep
from stepwell.sim.whatif.counterfactual import bare
from stepwell.sim.whatif.recorded import read_recorded
from stepwell.sim.whatif.times import MODEL, StepTimeModel, step_times
from stepwell.sim.workload.request import Workload
from stepwell.sim.workload.trace import format_of, read_trace
from stepwell.sim.workload.transform import joined, limit, shift_to_zero

JOURNAL, VLLM_LOG = "journal", "vllm-log"
NOW = "vllm"
"""The policy that decides as the server of a vLLM log does."""


class Traffic(msgspec.Struct, frozen=True):
    """``config`` is what runs now.  ``requests_in_all`` were recorded; ``workload`` has the latest of them, from 0."""

    sources: list[str]
    config: Config
    workload: Workload
    times: StepTimeModel
    requests_in_all: int
    notes: list[str]


def read_traffic(
    paths: Sequence[Path],
    *,
    overrides: Sequence[str] = (),
    scenario: Path | None = None,
    cost: Path | None = None,
    latest: int = 0,
    model: str = MODEL,
    environ: Mapping[str, str] | None = None,
    told: Callable[[int], None] | None = None,
) -> Traffic:
    """``overrides`` and ``cost`` (a file with ``[cost]``) change what the record says; ``latest`` requests are kept.

    ``scenario`` is the configuration of what runs now, where the files are no journals.  Raises ``UserError``.
    """
    formats = [_format(path) for path in paths]
    if len(set(formats)) > 1:
        raise UserError(f"give files of one kind, not {' and '.join(sorted(set(formats)))}", field="file")
    given = cost is not None or any(each.strip().startswith("cost.") for each in overrides)
    own = resolve(cost).config.cost if cost is not None else None
    if formats[0] == JOURNAL:
        if scenario is not None:
            raise UserError("a journal says what runs now; change it with --set", field="config")
        return _from_journals(paths, overrides, own, given, latest, model, told)
    if not given and scenario is None:
        raise UserError(
            "such a file holds no step times: give --cost FILE (`stepwell calibrate --out`), --set cost.… (`stepwell"
            " cost` knows devices and models), or --config FILE with [cost]",
            field="cost",
        )
    now = [f"scheduler.policy={NOW}"] if formats[0] == VLLM_LOG and scenario is None else []
    config = read_scenario(scenario, overrides=[*now, *overrides], environ=environ).config
    config = bare(config if own is None else msgspec.structs.replace(config, cost=own))
    found = [read_trace(path) for path in paths]
    told_times = (
        f"step times are estimates: those of the cost model {config.cost.model}; lengths are as they were logged"
    )
    times = StepTimeModel(config.cost, config.cost, False, told_times)
    return _traffic(paths, config, found, times, latest, [note for each in found for note in each.notes])


def _from_journals(
    paths: Sequence[Path],
    overrides: Sequence[str],
    cost: CostConfig | None,
    given: bool,
    latest: int,
    model: str,
    told: Callable[[int], None] | None,
) -> Traffic:
    recorded = [read_recorded(path, told) for path in paths]
    if len({each.live for each in recorded}) > 1:
        raise UserError("some of the journals are simulated and some are not: give those of one kind", field="file")
    last = recorded[-1]
    base = bare(last.config)
    config = changed(base, overrides, source="the journal").config
    config = config if cost is None else msgspec.structs.replace(config, cost=cost)
    steps: list[MeasuredStep] = [step for each in recorded for step in each.steps]
    times = step_times(base, steps, live=last.live, given=config.cost if given else None, model=model)
    notes = [note for each in recorded for note in each.notes]
    if any(bare(each.config) != base for each in recorded):
        notes.append(f"the journals differ in their configurations; what runs now is taken from {last.path}")
    return _traffic(paths, config, [each.workload for each in recorded], times, latest, notes)


def _traffic(
    paths: Sequence[Path],
    config: Config,
    found: Sequence[Workload],
    times: StepTimeModel,
    latest: int,
    notes: Sequence[str],
) -> Traffic:
    whole = joined([shift_to_zero(each) for each in found])
    kept = whole
    if latest and len(whole) > latest:
        kept = shift_to_zero(limit(whole, latest, len(whole) - latest))
    check_classes(kept, config)
    return Traffic([str(path) for path in paths], config, kept, times, len(whole), list(dict.fromkeys(notes)))


def _format(path: Path) -> str:
    try:
        return format_of(path).name
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}", field="file") from None
