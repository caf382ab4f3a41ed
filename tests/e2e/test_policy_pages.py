"""The pages of docs/policies are true: every registered policy has one, and its generated part is today's."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell.benchmarks import policy_pages
from stepwell.core.registry import discover
from stepwell.core.types import NS_PER_MS
from stepwell.sim.strips import Strips
from stepwell.tests.architecture_rules import ROOT

OURS = [name for name, found in discover("policies").items() if found[0].distribution == "stepwell"]


@pytest.mark.parametrize("name", OURS)
def test_a_page_is_what_the_generator_writes(name: str) -> None:
    """If it is not: ``python -m stepwell.benchmarks.policy_pages``."""
    present = (policy_pages.PAGES / f"{name}.md").read_text()
    assert present == policy_pages.page(name, present)
    assert present.startswith(f"# `{name}`\n")


def test_there_are_pages_of_registered_policies_only_and_the_index_names_them_all() -> None:
    assert sorted(path.stem for path in policy_pages.PAGES.glob("*.md")) == sorted(OURS)
    index = (ROOT / "docs" / "policies.md").read_text()
    assert not [name for name in OURS if f"](policies/{name}.md)" not in index]


def test_a_new_policy_gets_a_page_from_what_it_says_of_itself(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text('from stepwell.policies.fcfs import Fcfs\n\nclass Mine(Fcfs):\n    """Mine alone."""\n')
    begun = policy_pages.page(f"{path}:Mine", "")
    assert begun.startswith(f"# `{path}:Mine`\n\nMine alone.\n\n{policy_pages.MARK}")
    assert "Not measured yet." in begun


def test_the_workload_shows_what_policies_are_for() -> None:
    """On it those differ that are meant to."""
    pictures = {name: "\n".join(policy_pages.written(name).partition("```")[2:]) for name in OURS}
    alike = {("chat-batch", "edf")}  # with two classes, one of them without deadlines
    same = {(a, b) for a in OURS for b in OURS if a < b and pictures[a] == pictures[b]}
    assert same <= alike


def test_strips_by_hand() -> None:
    strips = Strips()
    strips.changes = {1: [(0, "·"), (30, "░"), (60, "█"), (100, " ")], 2: [(50, "·"), (70, " ")]}
    assert list(strips.lines({1: "one", 2: "other"}, 20)) == ["one   |··░██", "other |  ··"]
    assert list(strips.lines({1: "one"}, NS_PER_MS)) == ["one |█"]
