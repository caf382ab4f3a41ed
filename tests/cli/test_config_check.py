"""``stepwell config check`` looks at the workload as a simulation would."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell.tests.cli.hand import call


@pytest.mark.parametrize(
    ("setting", "field"),
    [
        ("workload.settings.trns=1", "workload.settings.trns"),
        ("workload.settings.arrivals.rate_per_s=-1.0", "workload.settings.arrivals"),
        ("workload.settings.count=-5", "workload.settings.count"),
        ("workload.debucket=true", "workload.debucket"),
    ],
)
def test_config_check_refuses_a_workload_that_a_simulation_refuses(
    setting: str, field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "it.toml").write_text("")
    status, _, told = call(capsys, "config", "check", tmp_path / "it.toml", "--set", setting)
    assert status == 2
    assert field in told
    assert (status, "", told) == call(capsys, "sim", tmp_path / "it.toml", "--set", setting)


def test_config_check_looks_at_the_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that is no trace is refused as a simulation refuses it; one that is not there yet is worth a note."""
    scenario, trace = tmp_path / "it.toml", tmp_path / "trace.csv"
    scenario.write_text('[workload]\nkind = "trace"\ntrace = "trace.csv"\n')
    status, out, told = call(capsys, "config", "check", scenario)
    assert (status, "is right" in out) == (0, True)
    assert told == f"note: workload.trace cannot be read yet: {trace}: No such file or directory\n"
    trace.write_text("sheep,goats\n1,2\n")
    status, out, told = call(capsys, "config", "check", scenario)
    assert (status, out) == (2, "")
    assert "workload.trace" in told
    assert "no known trace format" in told
    assert call(capsys, "sim", scenario)[0] == 2
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n")
    assert call(capsys, "config", "check", scenario)[0] == 0
