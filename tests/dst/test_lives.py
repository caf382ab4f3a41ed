"""Deterministic simulation: the production engine lives many seeded lives with faults, and every law holds in each.

A failure prints the command that repeats it; ``docs/testing.md`` says how to read it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from stepwell.tests.dst.draw import own, scenario_of
from stepwell.tests.dst.run import hold, hold_seeds
from stepwell.tests.dst.scenario import (
    Close,
    Hold,
    Jump,
    Lost,
    OutOfMemory,
    Pin,
    Raises,
    Reset,
    Slow,
    Stall,
    UsePolicy,
    decode,
    encode,
)

QUICK = 100
MANY = 10_000
CHUNK = 200


@pytest.mark.parametrize("first", range(0, QUICK, 25))
def test_every_law_holds(first: int, tmp_path: Path) -> None:
    hold_seeds(first, first + 25, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(QUICK, MANY, CHUNK))
def test_every_law_holds_in_many(first: int, tmp_path: Path) -> None:
    hold_seeds(first, min(first + CHUNK, MANY), tmp_path)


def test_a_few_hundred_seeds_draw_everything() -> None:
    """Or else a law would hold of what never happens."""
    scenarios = [scenario_of(seed) for seed in range(600)]
    houses = [each.house for each in scenarios]
    assert {each.policy for each in houses} >= set(own("policies"))
    assert {each.allocator for each in houses} == set(own("allocators"))
    assert {(each.depth, each.process) for each in houses} == {(d, p) for d in (1, 2, 3) for p in (True, False)}
    troubles = Counter(type(trouble) for each in scenarios for trouble in (*each.faults, *each.twists, *each.acts))
    assert set(troubles) == {Slow, OutOfMemory, Lost, Raises, Jump, Stall, UsePolicy, Pin, Hold, Reset, Close}
    assert min(troubles.values()) >= 5
    visits = [visit for each in scenarios for visit in each.visits]
    for field in (
        "parent",
        "expires_ns",
        "leaves_after",
        "leaves_ns",
        "stops_after",
        "raises_after",
        "lag_ns",
        "endless",
    ):
        assert sum(bool(getattr(visit, field)) for visit in visits) > 20, field


def test_the_faults_strike(tmp_path: Path) -> None:
    """Not only drawn: they come to pass, and requests end in every way there is."""
    struck: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    for seed in range(40):
        life = hold(scenario_of(seed), tmp_path)
        struck.update(type(each).__name__ for each in life.script.struck)
        ends.update(getattr(each, "reason", "refused") for each in life.watch.ends.values())
    assert set(struck) >= {"Slow", "OutOfMemory", "Lost"}
    assert {"stop", "length", "cancelled", "error", "expired", "refused"} <= set(ends), ends


def test_a_scenario_can_be_written_down() -> None:
    for seed in range(50):
        scenario = scenario_of(seed)
        assert decode(encode(scenario)) == scenario == scenario_of(seed)
