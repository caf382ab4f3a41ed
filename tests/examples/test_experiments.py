"""The experiments of examples/: they run, verdicts follow from the numbers, and exchanged policies refute them."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from stepwell.core.errors import UserError
from stepwell.core.testing import check_policy
from stepwell.examples.experiments.prefill_first import PrefillFirst
from stepwell.examples.experiments.run import EXPERIMENTS
from stepwell.examples.experiments.setup import Point, best, knee, rates, sweep
from stepwell.examples.experiments.show import QUICK, Experiment, Outcome, draw, findings, main, perform, record, words
from stepwell.examples.experiments.verdict import Finding, Quantity, judge
from stepwell.sim.plot import can_draw
from stepwell.tests.architecture_rules import ROOT

DOUBLED = Quantity(what="twice as much", least=2.0, most=3.0, tolerance=1.5)


def strains(*values: float) -> list[Point]:
    return [Point(2.0**k, value, value) for k, value in enumerate(values)]


# ------------------------------------------------------------------------------------------------ verdicts


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([2.4], "reproduced"),
        ([2.0 / 1.5], "reproduced"),  # the tolerance's own edge
        ([4.5], "reproduced"),
        ([4.6], "direction only"),
        ([1.2], "direction only"),
        ([1.0], "not reproduced"),  # no difference
        ([0.5], "not reproduced"),
        ([2.0, 2.5, 3.0], "reproduced"),  # 2.5 ± 1.24
        ([1.1, 2.5, 3.9], "not reproduced"),  # 2.5 ± 3.48: 1 lies within
        ([1.15, 1.2, 1.25], "direction only"),  # 1.2 ± 0.12
        ([math.nan], "not reproduced"),
        ([2.5, math.nan, 2.5], "not reproduced"),
        ([math.inf], "not reproduced"),
    ],
)
def test_a_verdict_follows_from_the_interval_and_the_tolerance(values: list[float], verdict: str) -> None:
    assert judge([Finding(DOUBLED, values)]) == verdict


def test_a_claim_is_as_good_as_the_weakest_of_its_quantities() -> None:
    met, directed, failed = (Finding(DOUBLED, [value]) for value in (2.5, 10.0, 0.9))
    assert judge([met, met]) == "reproduced"
    assert judge([met, directed]) == "direction only"
    assert judge([directed, met, failed]) == "not reproduced"
    with pytest.raises(UserError, match="at least one finding"):
        judge([])


@pytest.mark.parametrize("change", [{"least": 0.0}, {"most": 1.0}, {"tolerance": 0.9}, {"beyond": -1.0}])
def test_a_senseless_quantity_is_refused(change: dict[str, float]) -> None:
    with pytest.raises(UserError, match="needs"):
        Quantity(**({"what": "x", "least": 2.0, "most": 3.0} | change))  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------ knees


def test_a_knee_is_where_the_strain_reaches_its_limit() -> None:
    assert knee(strains(0.1, 0.5, 2.0)) == pytest.approx(2 * math.sqrt(2))  # from 2 to 4, half way by logarithms
    assert knee(strains(0.5, 1.0, 3.0)) == 2.0
    assert knee(strains(1.5, 3.0)) == 1.0
    assert math.isnan(knee(strains(0.1, 0.2)))


def test_the_best_curve_is_that_of_the_highest_knee_of_those_that_show_one() -> None:
    assert best([strains(0.5, 1.0), strains(0.1, 0.25, 1.0), strains(0.1)]) == strains(0.1, 0.25, 1.0)
    assert best([strains(0.1), strains(0.2)]) == strains(0.1)


def test_a_sweep_ends_where_it_is_clear() -> None:
    asked: list[float] = []

    def measure(x: float) -> Point:
        asked.append(x)
        return Point(x, x, x)

    sweep([1.0, 2.0, 2.5, 3.0], measure)
    assert asked == [1.0, 2.0, 2.5]
    assert rates(1.0, 7.0, 2.0) == [1.0, 2.0, 4.0, 8.0]


# ------------------------------------------------------------------------------------------------ the experiments


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    return {name: perform(each, QUICK) for name, each in EXPERIMENTS.items()}


every = pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=EXPERIMENTS)


@every
def test_it_runs_and_shows_what_it_is_to_show(experiment: Experiment, outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes[experiment.name]
    assert [len(each.values) for each in outcome.findings] == [1] * len(experiment.quantities)
    assert all(math.isfinite(value) for each in outcome.findings for value in each.values)
    assert [label for label, _ in outcome.curves] == [side.label for side in experiment.sides]
    assert all(len(points) > 2 for _, points in outcome.curves)
    assert outcome.verdict != "not reproduced"
    report = "\n".join(words(outcome))
    assert all(each in report for each in (experiment.paper, experiment.figure, experiment.claim, outcome.verdict))
    line = json.loads(record(outcome))
    assert line["verdict"] == outcome.verdict
    assert len(line["curves"]) == len(experiment.sides)


@every
def test_exchanged_contenders_refute_it(experiment: Experiment, outcomes: dict[str, Outcome]) -> None:
    """A curve depends on nothing but its side, so to exchange the curves is to exchange the policies."""
    first, *between, last = [points for _, points in outcomes[experiment.name].curves]
    assert judge(findings(experiment, [last, *between, first])) == "not reproduced"


def test_exchanged_policies_refute_it() -> None:
    experiment = EXPERIMENTS["fair_tenants"]
    assert perform(experiment, QUICK, sides=experiment.sides[::-1]).verdict == "not reproduced"


@pytest.mark.skipif(not can_draw(), reason="pictures need the extra research")
def test_a_picture_is_drawn(outcomes: dict[str, Outcome], tmp_path: Path) -> None:
    draw(outcomes["fair_tenants"], tmp_path / "vtc.png")
    assert (tmp_path / "vtc.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_processes_find_the_same() -> None:
    """Two seeds in two processes, and one after the other."""
    size = type(QUICK)((1, 2), QUICK.share)
    experiment = EXPERIMENTS["continuous_batching"]
    assert perform(experiment, size, jobs=2) == perform(experiment, size, jobs=1)


def test_the_command(tmp_path: Path) -> None:
    kept = tmp_path / "lines.jsonl"
    command = [
        sys.executable,
        "-m",
        "stepwell.examples.experiments.run",
        "fair_tenants",
        "--quick",
        "--json",
        str(kept),
    ]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    assert "\n  verdict   " in ran.stdout
    assert [json.loads(line)["experiment"] for line in kept.read_text().splitlines()] == ["fair_tenants"]


@pytest.mark.parametrize(
    ("words_asked", "says"), [((), "name some, or --all"), (("nope",), "unknown: nope; there are")]
)
def test_the_command_says_what_there_is(
    words_asked: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["run", *words_asked])
    with pytest.raises(SystemExit):
        main(list(EXPERIMENTS.values()))
    assert says in capsys.readouterr().err


def test_prefill_first_conforms() -> None:
    check_policy(lambda: PrefillFirst(PrefillFirst.Options()), examples=15)


def test_the_page_tells_what_was_measured() -> None:
    """A row an experiment in docs/experiments.md, with the figures of the run that is kept."""
    kept = (ROOT / "benchmarks" / "results" / "2026-11-30-experiments.jsonl").read_text().splitlines()
    page = (ROOT / "docs" / "experiments.md").read_text().splitlines()
    lines = [json.loads(line) for line in kept]
    assert [line["experiment"] for line in lines] == list(EXPERIMENTS)
    for line in lines:
        experiment = EXPERIMENTS[line["experiment"]]
        assert (line["paper"], line["figure"], line["claim"]) == (experiment.paper, experiment.figure, experiment.claim)
        found = [Finding(q, told["values"]) for q, told in zip(experiment.quantities, line["quantities"], strict=True)]
        assert judge(found) == line["verdict"]
        (row,) = [text for text in page if text.endswith(f"| `{experiment.name}` |")]
        assert f"| {experiment.figure} |" in row
        assert f"| **{line['verdict']}** |" in row
        assert all(f"{each.estimate.mean:.3g}" in row for each in found)


def test_files_are_small() -> None:
    files = sorted((ROOT / "examples" / "experiments").glob("*.py"))
    shared = {"run", "setup", "show", "verdict", "prefill_first"}
    assert {path.stem for path in files} - shared == set(EXPERIMENTS)
    assert not [path.name for path in files if path.stem in EXPERIMENTS and len(path.read_text().splitlines()) > 140]
