"""What is to be compared: the table ``[compare]`` of a scenario, and what it comes to.

    [compare]
    policies = ["fcfs", { name = "sarathi", options = { step_ms = 30.0 }, label = "short steps" }]
    allocators = ["prefix"]            # left out: the scenario's own
    loads = [0.5, 0.9]                 # shares of the saturated rate; or rates = [10.0, 20.0], requests a second
    seeds = 5                          # 1 to 5; or a list; left out: the scenario's own seed
    baseline = "fcfs"                  # left out: the first
    slo_share = 0.9                    # look for the highest rate at which so many meet their objectives; 0: do not

Every policy is compared on every allocator at every load with every seed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import msgspec

from stepwell.core.config import Config
from stepwell.core.config_load import read_file
from stepwell.core.config_types import Name, Options
from stepwell.core.errors import UserError
from stepwell.core.schema import convert, unknown
from stepwell.sim.compare.records import Contender, Point
from stepwell.sim.scenario import rooted

TABLE = "compare"
MOST_RUNS = 100_000

Seed = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class Choice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A policy or an allocator with options of its own, and what tables call it."""

    name: Name
    options: Options = {}
    label: Annotated[str, msgspec.Meta(max_length=40)] = ""


class Question(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """See the module.  Empty lists stand for what the scenario itself says."""

    policies: tuple[Name | Choice, ...] = ()
    allocators: tuple[Name | Choice, ...] = ()
    loads: tuple[Annotated[float, msgspec.Meta(gt=0, le=100)], ...] = ()
    rates: tuple[Annotated[float, msgspec.Meta(gt=0, le=1e9)], ...] = ()
    seeds: Annotated[int, msgspec.Meta(ge=1, le=10_000)] | tuple[Seed, ...] | None = None
    """So many, from 1 on; or these; or the scenario's own."""
    baseline: str = ""
    """The label of the contender that all others are compared with."""
    slo_share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    """SLO attainment that a knee must hold; 0: no knee is looked for."""
    slo_scope: Name = "all"
    """Whose attainment: a class, or ``all``."""
    tolerance: Annotated[float, msgspec.Meta(ge=0.001, le=0.5)] = 0.02
    """A knee lies below the true one by this share of it, at most."""


def read_question(scenario: Path | None, changes: Mapping[str, Any]) -> Question:
    """The question of a scenario's file, with those values replaced that are in ``changes``; raises ``UserError``.

    Plugin files that the scenario names count from its folder, those in ``changes`` from where the program runs.
    """
    table: Any = read_file(scenario).get(TABLE, {}) if scenario is not None else {}
    asked = convert(table, Question, field=TABLE, source_of=lambda path: str(scenario))
    if scenario is not None:
        asked = msgspec.structs.replace(
            asked,
            policies=_rooted(asked.policies, scenario.parent),
            allocators=_rooted(asked.allocators, scenario.parent),
        )
    if {"loads", "rates"} & changes.keys():
        asked = msgspec.structs.replace(asked, loads=(), rates=())
    tree = msgspec.to_builtins(asked) | {key: msgspec.to_builtins(value) for key, value in changes.items()}
    question = convert(tree, Question, field=TABLE)
    if question.loads and question.rates:
        raise UserError("give loads or rates, not both", field=f"{TABLE}.rates")
    for key in ("loads", "rates", "seeds"):
        values: Any = getattr(question, key)
        if isinstance(values, Sequence) and len(set(values)) < len(values):
            raise UserError(f"names a value twice: {', '.join(f'{each:g}' for each in values)}", field=f"{TABLE}.{key}")
    if question.seeds == ():
        raise UserError("needs one at least; leave it out for the scenario's own", field=f"{TABLE}.seeds")
    return question


def contenders(question: Question, config: Config) -> list[Contender]:
    """Every policy on every allocator."""
    policies = _choices(question.policies or (config.scheduler.policy,), f"{TABLE}.policies")
    allocators = _choices(question.allocators or (config.memory.allocator,), f"{TABLE}.allocators")
    return [
        Contender(
            label=policy.label if len(allocators) == 1 else f"{policy.label} + {allocator.label}",
            policy=policy.name,
            allocator=allocator.name,
            options=policy.options,
            allocator_options=allocator.options,
        )
        for policy, allocator in product(policies, allocators)
    ]


def baseline(question: Question, compared: Sequence[Contender]) -> str:
    """The label of the baseline; a policy's name stands for it on the first allocator."""
    wanted = question.baseline
    if not wanted:
        return compared[0].label
    for each in compared:
        if wanted in (each.label, each.label.partition(" + ")[0]):
            return each.label
    raise unknown("contender", wanted, [each.label for each in compared], field=f"{TABLE}.baseline")


def seeds(question: Question) -> list[int] | None:
    """None: the scenario's own."""
    if isinstance(question.seeds, int):
        return list(range(1, question.seeds + 1))
    return None if question.seeds is None else list(question.seeds)


def points(question: Question, saturated_per_s: float | None) -> list[Point]:
    """In ascending order; one without a rate if none was asked for."""
    if question.loads:
        assert saturated_per_s is not None
        return [Point(load, float(f"{load * saturated_per_s:.6g}")) for load in sorted(question.loads)]
    return [Point(None, rate) for rate in sorted(question.rates)] or [Point()]


def _rooted(given: Iterable[str | Choice], base: Path) -> tuple[str | Choice, ...]:
    return tuple(
        rooted(each, base) if isinstance(each, str) else msgspec.structs.replace(each, name=rooted(each.name, base))
        for each in given
    )


def _choices(given: Iterable[str | Choice], field: str) -> list[Choice]:
    """With labels, which must differ."""
    chosen: list[Choice] = []
    labels: list[str] = []
    for index, each in enumerate(given):
        choice = Choice(each) if isinstance(each, str) else each
        label = choice.label or choice.name.rpartition(":")[2].rpartition("/")[2]
        if not choice.label and label in labels and choice.options:
            label += " " + ", ".join(f"{key}={value}" for key, value in choice.options.items())
        if label in labels:
            raise UserError(f"{label!r} is there twice; give one another label", field=f"{field}[{index}]")
        labels.append(label)
        chosen.append(msgspec.structs.replace(choice, label=label))
    return chosen
