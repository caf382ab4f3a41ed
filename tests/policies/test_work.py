"""``sjf``, ``srpt`` and their predictors: the shortest work first, as far as it can be guessed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stepwell.core import registry
from stepwell.core.errors import UserError
from stepwell.sim.replay import replay
from stepwell.sim.run import simulate
from stepwell.sim.workload.request import TraceRequest
from stepwell.tests.policies.playing import ORACLE, mean_end_ns, order, play

LONG_FIRST = [TraceRequest(0, 16, 200), *(TraceRequest(1 + k, 16, 11 - k) for k in range(7))]
"""A long request has the one seat when seven short ones come, the longest of them first."""


def test_sjf_takes_the_shortest_that_waits_and_lets_the_long_one_finish() -> None:
    run = play("sjf", LONG_FIRST, ORACLE)
    assert order(run) == [1, 8, 7, 6, 5, 4, 3, 2]
    assert not any(story.preemptions for story in run.stories.values())


def test_srpt_sends_the_long_one_away_once_and_keeps_its_work() -> None:
    run = play("srpt", LONG_FIRST, ORACLE)
    assert [it.mode for _, it in run.stories[1].preemptions] == ["swap"]
    assert run.stories[1].positions == list(range(16, 216))
    assert run.stories[1].end_ns == max(it.end_ns for it in run.stories.values())


def test_the_mean_time_falls_from_fcfs_to_sjf_to_srpt() -> None:
    """The published property: by truth, no order has a shorter mean than shortest remaining time."""
    fcfs, sjf, srpt = (mean_end_ns(play(name, LONG_FIRST, options)) for name, options in TRIO)
    assert srpt < sjf < fcfs
    assert srpt < 0.5 * fcfs


TRIO: list[tuple[str, dict[str, object]]] = [("fcfs", {}), ("sjf", ORACLE), ("srpt", ORACLE)]


def test_a_tenant_s_past_tells_its_future() -> None:
    """Equal prompts; after one request of each, the tenant of short answers goes first although it came later."""
    first = [TraceRequest(0, 16, 100, tenant="long"), TraceRequest(0, 16, 3, tenant="short")]
    later = [TraceRequest(50_000 + k, 16, 100 if k < 4 else 3, tenant="long" if k < 4 else "short") for k in range(8)]
    assert order(play("sjf", [*first, *later])) == [1, 2, 3, 7, 8, 9, 10, 4, 5, 6]
    assert order(play("sjf", [*first, *later], {"predictor": "constant"})) == list(range(1, 11))


def test_the_oldest_ages_to_the_front() -> None:
    """A long request among an endless stream of short ones: never without age, soon with it."""
    stream = [TraceRequest(0, 16, 8), TraceRequest(1, 16, 300), *(TraceRequest(2 + 100 * k, 16, 8) for k in range(60))]
    options = {**ORACLE, "aging_s": 1e-6}
    assert order(play("sjf", stream, ORACLE))[-1] == 2
    assert 5 <= order(play("sjf", stream, options)).index(2) <= 12


def ended(tenant: str, tokens: int) -> Any:
    return SimpleNamespace(tenant=tenant, generated=tokens, max_tokens=1000)


def test_a_quantile_of_the_latest() -> None:
    predictor = registry.make("predictors", "quantile", {"quantile": 1.0, "window": 3, "first": 7, "tenants": 2})
    assert predictor.predict(ended("a", 0)) == 7
    for tokens in (900, 10, 30, 20):
        predictor.learn(ended("a", tokens))
    assert predictor.predict(ended("a", 0)) == 30
    again = registry.make("predictors", "quantile", {"quantile": 1.0, "window": 3, "first": 7, "tenants": 2})
    again.load(predictor.dump())
    assert again.dump() == predictor.dump() == [["a", [10, 30, 20]]]
    for tenant in ("b", "c"):
        predictor.learn(ended(tenant, 5))
    assert predictor.predict(ended("a", 0)) == 7  # two tenants at most


def test_an_oracle_serves_in_simulations_only() -> None:
    with pytest.raises(UserError, match="for simulations only"):
        registry.check_servable(registry.make_policy("srpt", ORACLE))
    registry.check_servable(registry.make_policy("srpt"))
    with pytest.raises(UserError, match="unknown predictor 'oracel'"):
        registry.make_policy("sjf", {"predictor": "oracel"})


@pytest.mark.parametrize("predictor", ["oracle", "quantile"])
def test_a_journal_has_what_the_predictor_knew(predictor: str, tmp_path: Path) -> None:
    """Replayed from the start and, the first segment gone, from the middle."""
    overrides = ["scheduler.policy=srpt", f"scheduler.options.predictor={predictor}", "memory.pages=600"]
    overrides += ["workload.settings.count=1500", "journal.segment_mib=1", "scheduler.max_context=4096"]
    result = simulate(overrides=overrides, journal=tmp_path / "run.jsonl")
    assert result.summary.preemptions_swap > 10
    report = replay(tmp_path / "run.jsonl")
    assert report.difference is None
    assert report.turns > 1000
    later = tmp_path / "run.00001.jsonl"
    if later.exists():
        assert replay(later).difference is None
