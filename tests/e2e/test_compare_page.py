"""docs/compare.md is true: its scenario, its table of keys, the names in it, its Python."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from stepwell.core.schema import fields_of
from stepwell.sim.compare.flat import TABLES
from stepwell.sim.compare.measures import METRICS
from stepwell.sim.compare.question import Question
from stepwell.tests.architecture_rules import ROOT
from stepwell.tests.cli.hand import call

PAGE = (ROOT / "docs" / "compare.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_table_of_keys_is_that_of_the_code() -> None:
    listed = re.findall(r"^\| `(\w+)` \|.*\|.*\|$", PAGE.partition("## Reading")[0], re.MULTILINE)
    assert listed == list(fields_of(Question))


def test_the_question_is_that_of_the_example() -> None:
    (block,) = blocks("toml")
    example = (ROOT / "examples" / "scenarios" / "compare.toml").read_text(encoding="utf-8")
    assert tomllib.loads(block)["compare"] == tomllib.loads(example)["compare"]


def test_names_of_metrics_and_tables_are_known() -> None:
    section = PAGE.partition("further there are")[2].partition("## When")[0]
    named = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert len(named) == 5
    assert set(named) <= {each.name for each in METRICS}
    tables = PAGE.partition("the tables ")[2].partition(" as CSV")[0]
    assert re.findall(r"`(\w+)`", tables) == list(TABLES)


def test_the_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("polars", reason="data frames: pip install 'stepwell[research]'")
    (tmp_path / "scenario.toml").write_text("[workload.settings]\ncount = 30\n")
    monkeypatch.chdir(tmp_path)
    (block,) = blocks("python")
    exec(block.replace("seeds=5", "seeds=2, jobs=1"), {})


def test_its_commands_are_understood(capsys: pytest.CaptureFixture[str]) -> None:
    """With so few requests that they take no time."""
    (command,) = re.findall(r"^stepwell (compare --policy .*)$", PAGE, re.MULTILINE)
    argv = command.split()
    assert call(capsys, *argv, "--seeds", 1, "--limit", 10, "--jobs", 1)[0] == 0
