"""What notebooks and programs use: two functions that return data frames, and an import that costs nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

import stepwell
from stepwell.core.errors import UserError
from stepwell.sim import frames
from stepwell.sim.compare.run import compare
from stepwell.sim.run import simulate

SMALL = ["workload.settings.count=40"]


def test_public_names_are_the_functions_themselves() -> None:
    assert stepwell.simulate is simulate
    assert stepwell.compare is compare
    assert {"simulate", "compare", "__version__"} <= set(dir(stepwell))
    with pytest.raises(AttributeError, match="'simulat'; public are simulate, compare"):
        _ = stepwell.simulat


def test_a_run_is_a_data_frame_with_a_row_a_request() -> None:
    polars = pytest.importorskip("polars", reason="data frames: pip install 'stepwell[research]'")
    result = stepwell.simulate(overrides=[*SMALL, "scheduler.running_limit=4", "scheduler.max_waiting=2"])
    frame = result.frame()
    assert frame.height == 40
    assert frame["id"].to_list() == list(range(1, 41))
    refused = frame.filter(polars.col("reason") == "rejected")
    assert 0 < refused.height < 40
    assert refused["e2e_ms"].null_count() == refused["ttft_ms"].null_count() == refused.height
    whole = result.summary.all
    assert frame["ttft_ms"].mean() == pytest.approx(whole.ttft_ms.mean)
    assert frame["e2e_ms"].mean() == pytest.approx(whole.e2e_ms.mean)
    assert frame["tpot_ms"].drop_nulls().max() >= whole.tpot_ms.p99


def test_a_comparison_is_data_frames() -> None:
    polars = pytest.importorskip("polars", reason="data frames: pip install 'stepwell[research]'")
    found = stepwell.compare(policies=["fcfs", "swap"], overrides=SMALL, seeds=2, jobs=1)
    frame = found.frame()
    wanted = (polars.col("metric") == "ttft_mean_ms") & (polars.col("scope") == "all")
    assert frame.filter(wanted)["contender"].to_list() == ["fcfs", "swap"]
    assert found.frame("differences")["contender"].unique().to_list() == ["swap"]
    with pytest.raises(UserError, match="did you mean 'runs'"):
        found.frame("run")


def test_without_polars_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "can_frame", lambda: False)
    with pytest.raises(UserError, match=r"pip install 'stepwell\[research\]'"):
        simulate(overrides=SMALL).frame()


@pytest.mark.parametrize(
    ("program", "absent"),
    [
        ("import stepwell; stepwell.__version__; dir(stepwell)", {"numpy", "msgspec", "stepwell.sim"}),
        ("import stepwell; stepwell.simulate", {"polars", "matplotlib", "ray", "rich", "torch", "multiprocessing"}),
        ("import stepwell; stepwell.compare", {"polars", "matplotlib", "ray", "rich", "torch", "multiprocessing"}),
    ],
)
def test_importing_costs_what_is_used(program: str, absent: set[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert not absent & set(done.stdout.split())
