"""Comparisons of small runs: what they hold, that nothing but the question decides it, and what goes wrong."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from stepwell.__main__ import main
from stepwell.cli.compare_tables import print_comparison
from stepwell.core.errors import UserError
from stepwell.sim.compare.analysis import make_knee, short_told
from stepwell.sim.compare.flat import columns
from stepwell.sim.compare.question import Choice
from stepwell.sim.compare.result import Comparison, Point, SeedKnee, to_json
from stepwell.sim.compare.run import compare
from stepwell.sim.run import simulate
from stepwell.sim.summary import Summary
from stepwell.tests.cli import hand

SMALL = ("workload.settings.count=60", "scheduler.max_context=4096", "memory.pages=1500")


def small(**changes: Any) -> Comparison:
    asked: dict[str, Any] = {"policies": ["fcfs", "chat-batch"], "rates": [12.0], "seeds": 2, "jobs": 1}
    return compare(overrides=SMALL, **asked | changes)


@pytest.fixture(scope="module")
def found() -> Comparison:
    return small(rates=[12.0, 200.0], seeds=3)


# ------------------------------------------------------------------------------------------------ what it holds


def test_every_cell_is_there_once_in_the_order_of_the_axes(found: Comparison) -> None:
    assert [(each.contender, each.point.rate_per_s, each.seed) for each in found.cells] == [
        (policy, rate, seed) for policy in ("fcfs", "chat-batch") for rate in (12.0, 200.0) for seed in (1, 2, 3)
    ]
    assert found.failures == []
    assert found.axes.baseline == "fcfs"
    assert found.axes.scopes == ["all", "chat", "batch"]
    assert found.axes.tenants == ["heavy", "light", "medium"]


def test_a_cell_is_what_simulate_says_of_its_overrides(found: Comparison) -> None:
    cell = found.cells[4]
    assert simulate(overrides=cell.overrides).summary == cell.summary


def test_contenders_get_the_same_requests_and_seeds_others(found: Comparison) -> None:
    assert len({each.digest for each in found.workloads}) == 3
    asked = {
        (cell.contender, cell.seed): sum(tenant.service for tenant in cell.tenants)
        for cell in found.cells
        if cell.point.rate_per_s == 12.0
    }
    assert all(asked["fcfs", seed] == asked["chat-batch", seed] for seed in (1, 2, 3))
    assert len({asked["fcfs", seed] for seed in (1, 2, 3)}) == 3


def test_rows_are_means_over_seeds_and_differences_are_of_pairs(found: Comparison) -> None:
    point = Point(rate_per_s=200.0)
    values = {
        policy: [
            each.summary.all.ttft_ms.mean or 0.0
            for each in found.cells
            if each.contender == policy and each.point == point
        ]
        for policy in ("fcfs", "chat-batch")
    }
    (row,) = [
        each
        for each in found.rows
        if (each.contender, each.point, each.scope, each.metric) == ("chat-batch", point, "all", "ttft_mean_ms")
    ]
    assert row.mean == pytest.approx(sum(values["chat-batch"]) / 3)
    assert (row.count, row.method) == (3, "seeds")
    (difference,) = [
        each for each in found.differences if (each.point, each.scope, each.metric) == (point, "all", "ttft_mean_ms")
    ]
    pairs = [mine - base for mine, base in zip(values["chat-batch"], values["fcfs"], strict=True)]
    assert difference.mean == pytest.approx(sum(pairs) / 3)
    assert difference.low is not None
    assert difference.high is not None
    assert difference.real is (difference.low > 0 or difference.high < 0)
    assert difference.relative == pytest.approx(difference.mean / (sum(values["fcfs"]) / 3))


def test_a_contender_differs_from_its_own_twin_by_nothing() -> None:
    twins = small(policies=["fcfs", Choice("fcfs", label="twin")])
    assert {each.mean for each in twins.differences} == {0.0}
    assert not any(each.real for each in twins.differences)
    assert all([ranked.rank for ranked in each.order] == [1, 1] for each in twins.rankings)


def test_classes_and_tenants_have_rows_of_their_own(found: Comparison) -> None:
    scopes = {each.scope for each in found.rows if each.metric == "ttft_mean_ms"}
    assert scopes == {"all", "chat", "batch", "tenant:heavy", "tenant:light", "tenant:medium"}
    assert {each.scope for each in found.rows if each.metric == "service_share"} == {s for s in scopes if ":" in s}
    shares = [each.mean for each in found.rows if each.metric == "service_share" and each.point.rate_per_s == 12.0]
    assert sum(shares) == pytest.approx(2.0)


def test_curves_and_courses_are_bounded_and_in_order(found: Comparison) -> None:
    for cell in found.cells:
        for curve in cell.curves:
            assert curve.values_ms == sorted(curve.values_ms)
            assert len(curve.values_ms) == (201 if curve.count else 0)
        assert len(cell.over_time.time_s) == len(cell.over_time.kv_share) <= 200
        assert all(0 <= each <= 1 for each in cell.over_time.kv_share)
        assert sum(each.count for each in cell.slowdown) == cell.summary.all.completed
        assert all(each.p50 >= 1 for each in cell.slowdown)


def test_who_has_the_device_alone_is_not_slowed_down(tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,5000,40\n90.0,100,1\n")
    made = compare(overrides=["workload.kind=trace", f"workload.trace={tmp_path / 'one.csv'}"], jobs=1)
    assert [(each.mean, each.count) for each in made.cells[0].slowdown] == [(1.0, 1), (1.0, 1)]


# ------------------------------------------------------------------------------------------------ one run only


def test_one_run_is_cut_into_sections_and_says_so() -> None:
    made = compare(policies=["fcfs", "chat-batch"], overrides=["workload.settings.count=500"], rates=[60.0], jobs=1)
    assert made.axes.seeds == [0]
    (row,) = [each for each in made.rows if (each.contender, each.scope, each.metric) == ("fcfs", "all", "ttft_p99_ms")]
    assert (row.mean, row.method, row.count) == (made.cells[0].summary.all.ttft_ms.p99, "sections", 10)
    assert {each.method for each in made.rows if each.metric == "kv_utilisation"} == {"none"}
    (note,) = [each for each in made.notes if "sections" in each]
    assert "10 sections" in note


def test_a_recorded_trace_is_run_once_whatever_the_seeds(tmp_path: Path) -> None:
    made = compare(hand.scenario(tmp_path), seeds=3, jobs=1)
    assert len(made.cells) == 1
    assert any("the same with every seed" in each for each in made.notes)
    assert {each.low for each in made.rows} == {None}


def test_samples_of_a_trace_have_seeds(tmp_path: Path) -> None:
    rows = "".join(f"{k}.0,{100 + k},5\n" for k in range(40))
    (tmp_path / "many.csv").write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + rows)
    trace = ["workload.kind=trace", f"workload.trace={tmp_path / 'many.csv'}"]
    made = compare(overrides=[*trace, "workload.share=0.5"], seeds=3, jobs=1)
    assert len({each.digest for each in made.workloads}) == 3
    assert simulate(overrides=made.cells[1].overrides).summary == made.cells[1].summary


def test_a_closed_loop_sets_its_own_pace() -> None:
    klass = "{prompt={mean=50,sigma=0.5},output={mean=9,sigma=0.5},think={mean_s=1}}"
    settings = {"users": 6, "requests": 4, "start_s": 1, "classes": f"[{klass}]"}
    users = ["workload.kind=users", *(f"workload.settings.{key}={value}" for key, value in settings.items())]
    made = compare(policies=["fcfs", "sjf"], overrides=users, seeds=2, jobs=1)
    assert [each.summary.all.completed for each in made.cells] == [24] * 4
    with pytest.raises(UserError, match="at their own pace"):
        compare(overrides=users, loads=[0.5], jobs=1)


# ------------------------------------------------------------------------------------------------ nothing else decides


def test_one_process_and_two_give_the_same_bytes(found: Comparison) -> None:
    again = small(rates=[12.0, 200.0], seeds=3, jobs=2)
    assert to_json(again) == to_json(found)


def test_kept_cells_are_found_again_and_damaged_ones_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = small(folder=tmp_path)
    kept = sorted((tmp_path / "cells").iterdir())
    assert len(kept) == 4
    told: list[tuple[str, int, int]] = []
    kept[1].write_bytes(b"{")
    again = small(folder=tmp_path, progress=lambda *now: told.append(now))
    assert to_json(again) == to_json(first)
    assert told == [("simulating", 3, 4), ("simulating", 4, 4)]
    more = small(folder=tmp_path, seeds=3, progress=lambda *now: told.append(now))
    assert told[2] == ("simulating", 4, 6)
    assert [each for each in more.cells if each.seed < 3] == first.cells


def test_a_policy_file_that_changed_is_run_again(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    told: list[int] = []
    for base in ("fcfs import Fcfs", "swap import Swap"):
        file.write_text(f"from stepwell.policies.{base} as Base\nclass Mine(Base):\n    pass\n")
        small(
            policies=[f"{file}:Mine"],
            folder=tmp_path / "out",
            seeds=1,
            progress=lambda _, done, total: told.append(done),
        )
    assert told == [0, 1, 0, 1]


# ------------------------------------------------------------------------------------------------ loads and knees


def test_loads_are_shares_of_a_rate_that_is_measured() -> None:
    made = small(rates=None, loads=[0.5, 2.0], seeds=1)
    saturated = made.axes.saturated_per_s
    assert saturated is not None
    assert [each.point.rate_per_s for each in made.cells[:2]] == [
        float(f"{0.5 * saturated:.6g}"),
        float(f"{2 * saturated:.6g}"),
    ]
    waits: list[Summary] = [each.summary for each in made.cells[:2]]
    assert (waits[0].all.ttft_ms.mean or 0) < (waits[1].all.ttft_ms.mean or 0)
    assert any(each.startswith(f"load 1 is {saturated:g} requests/s") for each in made.notes)


def test_a_knee_holds_and_a_little_more_does_not() -> None:
    made = small(rates=[20.0], slo_share=0.9, tolerance=0.1, seeds=1)
    knee = made.knees[0].seeds[0]
    assert knee.bound == "found"
    held = {rate for rate, attained in knee.tried if attained >= 0.9}
    assert knee.rate_per_s in held
    above = min(rate for rate, attained in knee.tried if attained < 0.9)
    assert knee.rate_per_s < above <= knee.rate_per_s / 0.9 + 1e-9
    seed = ["scheduler.seed=1", "workload.settings.seed=1"]
    again = simulate(overrides=[*SMALL, *seed, f"workload.rate={knee.rate_per_s}"])
    assert (again.summary.all.slo_attainment or 0) >= 0.9
    assert (made.knees[1].bound, made.knees[1].difference) == ("above", None)


SESSIONS = (
    "workload.kind=sessions",
    "workload.settings.sessions=12",
    "workload.settings.max_context=1024",
    "workload.settings.arrivals={rate_per_s = 2.0}",
    "workload.settings.classes="
    "[{turns = {mean = 3}, message = {mean = 30}, answer = {mean = 10}, think = {mean_s = 1}}]",
)


def test_no_load_is_a_share_where_requests_follow_others() -> None:
    with pytest.raises(UserError, match=r"compare\.loads: requests of this workload follow others.*--rate"):
        compare(policies=["fcfs"], loads=[0.9], jobs=1, overrides=SESSIONS)


def test_a_knee_of_sessions_is_a_rate_at_which_they_begin(capsys: pytest.CaptureFixture[str]) -> None:
    made = compare(policies=["fcfs"], rates=[3.0], slo_share=0.9, tolerance=0.2, jobs=1, overrides=SESSIONS)
    assert made.rate_unit == "programs/s"
    assert made.axes.saturated_per_s is None
    assert not any(each.startswith("load 1 is") for each in made.notes)
    seconds = 11 / made.knees[0].seeds[0].rate_per_s
    assert any(each.startswith("at the highest rates found") and f"{seconds:.3g} s)" in each for each in made.notes)
    print_comparison(made)
    assert "programs/s" in capsys.readouterr().out.partition("highest rate")[2]


def knee(seed: int, rate_per_s: float, bound: Literal["found", "below", "above"] = "found") -> SeedKnee:
    return SeedKnee(seed, rate_per_s, [], bound)


def test_a_difference_of_knees_is_told_only_where_both_searches_found_an_end(found: Comparison) -> None:
    base = [knee(1, 4.0), knee(2, 5.0)]
    known = make_knee("chat-batch", "all", [knee(1, 5.0), knee(2, 7.0)], base)
    least = make_knee("chat-batch", "all", [knee(1, 9.0), knee(2, 64.0, "above")], base)
    none = make_knee("chat-batch", "all", [knee(1, 0.0, "below"), knee(2, 7.0)], base)
    assert known.difference == 1.5
    assert (least.difference, least.difference_low, none.difference) == (None, None, None)
    assert make_knee("chat-batch", "all", known.seeds, least.seeds).difference is None
    table = columns(found.axes, msgspec.structs.replace(found, knees=[known, least, none]), "knees")
    assert table["bound"] == ["found", "above", "below"]


def test_a_minute_of_arrivals_is_long_enough_for_a_knee() -> None:
    assert short_told({"fcfs": [knee(1, 1.0)]}, {1: 61}) == []
    assert len(short_told({"fcfs": [knee(1, 1.0), knee(2, 0.0, "below")]}, {1: 60, 2: 60})) == 1


# ------------------------------------------------------------------------------------------------ what goes wrong


def test_a_failing_run_names_the_command_that_repeats_it_and_others_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "rogue.py"
    file.write_text(
        "from stepwell.core.plan import StepPlan\nfrom stepwell.policies.fcfs import Fcfs\n"
        "class Rogue(Fcfs):\n    def plan(self, view):\n        return StepPlan(admit=[(999, 1)])\n"
    )
    made = small(policies=["fcfs", f"{file}:Rogue"])
    assert [(each.contender, each.seed) for each in made.failures] == [("Rogue", 1), ("Rogue", 2)]
    assert "known request" in made.failures[0].error
    assert {each.contender for each in made.rows} == {"fcfs"}
    program, *argv = shlex.split(made.failures[0].command)
    assert program == "stepwell"
    assert main(argv) == 2
    assert "'known request'" in capsys.readouterr().err


@pytest.mark.slow
def test_a_process_that_dies_fails_its_run_alone(tmp_path: Path) -> None:
    file = tmp_path / "deadly.py"
    file.write_text(
        "import os\nfrom stepwell.policies.fcfs import Fcfs\n"
        "class Deadly(Fcfs):\n    def plan(self, view):\n        os.kill(os.getpid(), 9)\n"
    )
    made = small(policies=["fcfs", f"{file}:Deadly"], jobs=2)
    assert len(made.cells) == 2
    assert [each.error for each in made.failures] == [
        "its process ended with status -9 (killed, as happens where memory runs out)"
    ] * 2


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"policies": ["fcsf"]}, "scheduler.policy", "did you mean 'fcfs'?"),
    ({"policies": ["fcfs", "fcfs"]}, "compare.policies[1]", "is there twice"),
    ({"policies": [{"name": "fcfs", "opts": {}}]}, "compare.policies[0].opts", "did you mean 'options'?"),
    ({"policies": [Choice("fcfs", {"nothing": 1})]}, "scheduler.options.nothing", "unknown key"),
    ({"allocators": ["pagd"]}, "memory.allocator", "did you mean 'paged'?"),
    ({"rates": [0.0]}, "compare.rates[0]", "must be > 0"),
    ({"rates": [1.0, 1.0]}, "compare.rates", "names a value twice"),
    ({"loads": [1.0]}, "compare.rates", "give loads or rates, not both"),
    ({"seeds": 0}, "compare.seeds", ""),
    ({"seeds": []}, "compare.seeds", "needs one at least"),
    ({"baseline": "swap"}, "compare.baseline", "Allowed: chat-batch, fcfs"),
    ({"slo_share": 0.9, "slo_scope": "batch"}, "compare.slo_scope", "no class 'batch' with objectives"),
    ({"jobs": -1}, "jobs", "must be between 0"),
    ({"on": "slurm"}, "on", "Allowed: ray"),
    ({"seeds": 10_000, "rates": [float(k + 1) for k in range(11)], "policies": ["fcfs"]}, "compare", "at most 100000"),
]


@pytest.mark.parametrize(("changes", "field", "says"), REFUSED, ids=lambda it: it if isinstance(it, str) else "")
def test_refused(changes: dict[str, Any], field: str, says: str) -> None:
    with pytest.raises(UserError) as caught:
        small(**changes)
    assert caught.value.field == field
    assert says in str(caught.value)


# ------------------------------------------------------------------------------------------------ the scenario's table


def test_the_table_of_a_scenario_asks_and_arguments_replace_it(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    (tmp_path / "mine.py").write_text("from stepwell.policies.fcfs import Fcfs as Mine\n")
    file.write_text(
        '[workload.settings]\ncount = 30\n[compare]\npolicies = ["mine.py:Mine", {name = "sarathi",'
        ' options = {step_ms = 30.0}, label = "small"}]\nallocators = ["paged", "radix"]\nrates = [9.0]\n'
        'seeds = [4, 5]\nbaseline = "small"\n'
    )
    made = compare(file, jobs=1)
    assert [each.label for each in made.axes.contenders] == [
        f"{policy} + {allocator}" for policy in ("Mine", "small") for allocator in ("paged", "radix")
    ]
    assert made.axes.baseline == "small + paged"
    assert made.axes.seeds == [4, 5]
    assert made.contender("Mine + radix").policy == f"{tmp_path / 'mine.py'}:Mine"
    fewer = compare(file, policies=["fcfs"], allocators=["paged"], loads=[0.5], seeds=1, baseline="", jobs=1)
    assert len(fewer.cells) == 1
    assert fewer.axes.points[0].load == 0.5
    assert main(["sim", str(file), "--json"]) == 0, "the table is no part of a run"


def test_json_of_python_and_of_the_file_are_one(found: Comparison) -> None:
    told = json.loads(to_json(found))
    assert told["version"] == 1
    assert msgspec.json.decode(to_json(found), type=Comparison) == found
