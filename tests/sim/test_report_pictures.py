"""Pictures of a report: well-formed, finite, and of what they say they are of."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.core.errors import UserError
from stepwell.core.events import Event
from stepwell.core.instructions import Instruction
from stepwell.core.types import NS_PER_S
from stepwell.sim import report
from stepwell.sim.compare.result import Comparison
from stepwell.sim.compare.run import compare
from stepwell.sim.fidelity.agreement import Agreement
from stepwell.sim.loop import Observer
from stepwell.sim.phases import DECODE, PREFILL, QUEUED
from stepwell.sim.report import pictures
from stepwell.sim.report.latency import frontier
from stepwell.sim.report.lookup import Found
from stepwell.sim.report.measured import Measured, against_real, read_measured
from stepwell.sim.report.pictures import KINDS, Material, draw
from stepwell.sim.report.style import drawing
from stepwell.sim.report.window import REQUESTS, STEPS, Window, _EnoughError, windows
from stepwell.sim.run import simulate
from stepwell.sim.scenario import load_workload, read_scenario
from stepwell.sim.workload.request import TraceRequest, Workload

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


SESSIONS = """
[scheduler]
max_context = 4096
running_limit = 6

[[classes]]
name = "chat"
rank = 0
ttft_ms = 500

[[classes]]
name = "agent"
rank = 1

[workload]
kind = "sessions"

[workload.settings]
sessions = 40
max_context = 2048
seed = 1
arrivals = { rate_per_s = 8.0 }

[[workload.settings.classes]]
name = "chat"
share = 2
turns = { mean = 4, sigma = 0.7, max = 8 }
message = { mean = 80, sigma = 1.0, max = 600 }
answer = { mean = 120, sigma = 0.7, max = 300 }
think = { mean_s = 0.5 }

[[workload.settings.classes]]
name = "agent"
share = 1
turns = { mean = 4, sigma = 0.5, max = 8 }
message = { mean = 300, sigma = 1.0, max = 900 }
answer = { mean = 60, sigma = 0.7, max = 300 }
think = { mean_s = 0.1 }
"""


def test_where_requests_follow_others_both_sides_show_the_same_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids count arrivals, which policies change; a request goes by its place in the workload."""
    scenario = tmp_path / "sessions.toml"
    scenario.write_text(SESSIONS)
    found = compare(scenario, policies=["fcfs", "chat-batch"], jobs=1)
    requests = load_workload(read_scenario(scenario)).requests
    orders = [simulate(scenario, overrides=[f"scheduler.policy={each}"]).places for each in ("fcfs", "chat-batch")]
    first, second = windows(Found(found))
    assert list(first.arrivals) != list(second.arrivals), "nothing is tested where they arrive alike"
    assert set(first.arrivals) == set(second.arrivals)
    assert len(first.arrivals) == REQUESTS
    for window, places in zip((first, second), orders, strict=True):
        assert list(window.arrivals) == [each for each in places if each in first.arrivals]
        assert all(requests[place - 1].klass == klass for place, (_, klass) in window.arrivals.items())
        assert all(window.spans[place][0][1] == at_ns for place, (at_ns, _) in window.arrivals.items())
    monkeypatch.setattr(pictures, "KINDS", [each for each in KINDS if each.name in ("requests", "steps")])
    report.write(found, tmp_path)
    assert {each.stem for each in (tmp_path / "pictures").glob("*.svg")} == {"requests", "steps"}


def test_windows_are_around_the_longest_line(comparison: Comparison) -> None:
    """Not where it first grew long: a crowd that comes later is what is to be seen."""
    found = Found(comparison)
    over_time = found.cells(found.baseline, found.focus)[0].over_time
    peak_ns = 10**9 * over_time.time_s[over_time.waiting.index(max(over_time.waiting))]
    first, second = windows(found)
    at_ns = [at for at, _ in first.arrivals.values()]
    assert min(at_ns) < peak_ns < max(spans[-1][2] for spans in first.spans.values() if spans)
    for window in (first, second):
        assert window.steps[0].start_ns < peak_ns < window.steps[-1].end_ns
        assert [each.start_ns for each in window.steps] == sorted(each.start_ns for each in window.steps)


def test_half_of_a_window_is_from_before_its_peak() -> None:
    """Of one request a second, with a peak after 100 of them: 24 before, 24 after; with none after, the last 48."""
    requests = [TraceRequest(k * NS_PER_S, 8, 1) for k in range(200)]
    for peak, expected in ((100, range(78, 126)), (199, range(153, 201)), (0, range(1, 26))):
        window = Window("x", peak * NS_PER_S, 512, requests)
        simulate(workload=Workload("x", requests), observers=[observing(window)])
        assert list(window.arrivals) == list(expected)


def observing(window: Window) -> Observer:
    """As the window does, but to the end of the run."""

    def observe(now_ns: int, events: Sequence[Event], instructions: Sequence[Instruction]) -> None:
        with suppress(_EnoughError):
            window.observe(now_ns, events, instructions)

    return observe


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
