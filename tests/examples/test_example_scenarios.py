"""The scenarios of examples/ are right, and run, made smaller."""

from __future__ import annotations

import pytest

from stepwell.sim.compare.run import compare
from stepwell.tests.architecture_rules import ROOT
from stepwell.tests.cli.hand import call

SCENARIO = ROOT / "examples" / "scenarios" / "compare.toml"


def test_compare(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "config", "check", SCENARIO)[0] == 0
    found = compare(SCENARIO, seeds=2, overrides=["workload.limit=40"], jobs=1, loads=[0.9], tolerance=0.3)
    assert found.failures == []
    assert [each.label for each in found.axes.contenders] == ["fcfs", "chat-batch", "short steps"]
    assert [each.contender for each in found.knees] == ["fcfs", "chat-batch", "short steps"]
