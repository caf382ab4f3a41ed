"""Pictures of a report: well-formed, finite, and of what they say they are of."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.core.errors import UserError
from stepwell.sim import report
from stepwell.sim.compare.result import Comparison
from stepwell.sim.compare.run import compare
from stepwell.sim.fidelity.agreement import Agreement
from stepwell.sim.phases import DECODE, PREFILL, QUEUED
from stepwell.sim.report import pictures
from stepwell.sim.report.latency import frontier
from stepwell.sim.report.lookup import Found
from stepwell.sim.report.measured import Measured, against_real, read_measured
from stepwell.sim.report.pictures import KINDS, Material, draw
from stepwell.sim.report.style import drawing
from stepwell.sim.report.window import REQUESTS, STEPS, windows

replace = msgspec.structs.replace


def test_pictures_are_well_formed_and_finite(comparison: Comparison, written: Path) -> None:
    names = {each.stem for each in (written / "pictures").glob("*.svg")}
    assert names == {each.stem for each in (written / "pictures").glob("*.png")}
    assert names == {each.name for each in KINDS} - {"predicted-real"}
    for path in (written / "pictures").glob("*.svg"):
        text = path.read_text()
        ET.fromstring(text)
        assert "NaN" not in text
        assert not re.search(r"\b(nan|inf)\b", text)
    told = (written / "pictures" / "distributions.svg").read_text()
    assert ">chat-batch</text>" in told
    assert "means over 2 seeds" in told


@pytest.mark.slow
def test_a_single_run_has_its_pictures(tmp_path: Path) -> None:
    alone = compare(policies=["fcfs"], jobs=1, overrides=["workload.limit=80"])
    report.write(alone, tmp_path)
    names = {each.stem for each in (tmp_path / "pictures").glob("*.svg")}
    assert {"distributions", "over-time", "requests", "steps", "slowdown"} <= names
    assert not {"differences", "latency-rate"} & names


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6))))
def test_the_frontier_is_what_nothing_beats(spots: list[tuple[float, float]]) -> None:
    best = frontier(spots)

    def beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
        return one[0] >= other[0] and one[1] <= other[1] and one != other

    assert set(best) == {each for each in spots if not any(beats(other, each) for other in spots)}
    assert all(each in best or any(beats(other, each) for other in best) for each in spots)


def test_windows_follow_the_same_requests_from_arrival_to_end(comparison: Comparison) -> None:
    first, second = windows(Found(comparison))
    assert first.arrivals == second.arrivals
    assert 0 < len(first.arrivals) <= REQUESTS
    for window in (first, second):
        assert 0 < len(window.steps) <= STEPS
        served = {id: spans for id, spans in window.spans.items() if spans}  # one refused on arrival has none
        assert len(served) > len(window.spans) / 2
        for id, spans in served.items():
            assert spans[0][0] in (QUEUED, PREFILL)
            assert spans[0][1] == window.arrivals[id][0]
            assert [end for _, _, end in spans[:-1]] == [start for _, start, _ in spans[1:]]
            assert spans[-1][0] in (DECODE, PREFILL)


def test_a_scenario_that_is_gone_costs_two_pictures_and_no_report(
    comparison: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pictures, "KINDS", [each for each in KINDS if each.name in ("requests", "steps")])
    gone = replace(comparison, scenario=str(tmp_path / "gone.toml"))
    html = report.write(gone, tmp_path / "out").read_text()
    assert "are left out" in html
    assert not any((tmp_path / "out" / "pictures").iterdir())


# ------------------------------------------------------------------------------------------------ measured


def test_predicted_against_real(comparison: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = {"metric": "", "real": 100.0, "predicted": 103.0, "error": 0.03, "spread": 0.01, "met": True}
    names = ("ttft_mean_ms", "tpot_mean_ms", "e2e_mean_ms")
    agreement = dict.fromkeys(Agreement.__struct_fields__, 0) | {"preemptions": (0, 0)}
    cell = {"policy": "fcfs", "load": 0.9, "metrics": [row | {"metric": name} for name in names]}
    cell |= {"agreement": agreement, "between_runs": None, "extrapolated_share": 0.02, "valid": True, "late_ms": 0.1}
    file = tmp_path / "report.json"
    file.write_bytes(msgspec.json.encode({"cells": [cell], "model": "tiny"}))
    monkeypatch.setattr(pictures, "KINDS", [each for each in KINDS if each.name == "predicted-real"])
    (drawn,) = draw(Material(Found(comparison), measured=read_measured(file)), tmp_path)
    assert "predicted as it was" in drawn.svg
    assert "2.0 % of steps extrapolated" in drawn.svg


def test_steps_of_a_calibration(tmp_path: Path) -> None:
    shape = {"prefill_tokens": [0, 0], "decode_requests": [1, 2], "kv_tokens": [0, 256], "steps": 9}
    shape |= {"measured_p50_ms": 10.0, "predicted_p50_ms": 11.0, "ratio": 0.91}
    file = tmp_path / "calibration.json"
    file.write_bytes(msgspec.json.encode({"shapes": [shape]}))
    with drawing():
        assert against_real(read_measured(file)) is not None
    assert against_real(None) is None


@pytest.mark.parametrize("data", [b"{}", b"[]", b'{"cells": 3}', b"nothing"])
def test_another_file_is_refused(data: bytes, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_bytes(data)
    with pytest.raises(UserError, match="neither of a fidelity study nor of a calibration"):
        read_measured(file)
    with pytest.raises(UserError, match="cannot read"):
        read_measured(tmp_path / "nowhere.json")
    assert Measured().cells == []
