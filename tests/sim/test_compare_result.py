"""A comparison's file: what is written is read back, and what is no comparison is refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from stepwell.core.config import Config
from stepwell.core.errors import UserError
from stepwell.sim.compare.result import (
    VERSION,
    Axes,
    Cell,
    Comparison,
    Contender,
    Curve,
    OverTime,
    Point,
    Row,
    SeedWorkload,
    from_json,
    read,
    to_json,
)
from stepwell.sim.run import simulate


def small() -> Comparison:
    """One run, by hand."""
    result = simulate(overrides=["workload.limit=3"])
    point = Point(load=0.5, rate_per_s=4.0)
    axes = Axes([Contender("fcfs", "fcfs", "prefix")], "fcfs", [point], [1], ["all"], [], list(Config().classes))
    curve = Curve("ttft", "all", 3, 3, [1.0, 2.5, 4.0])
    cell = Cell("fcfs", point, 1, "d", ["workload.limit=3"], result.summary, [], [curve], [], OverTime(), [])
    return Comparison(
        version=VERSION,
        stepwell="0",
        scenario="s",
        config="",
        digest="d",
        workloads=[SeedWorkload(1, "w", 3, 4.0, ["three"])],
        axes=axes,
        cells=[cell],
        failures=[],
        rows=[Row("fcfs", point, "all", "ttft_mean_ms", 2.5, None, None, 1, "none")],
        differences=[],
        rankings=[],
        knees=[],
        notes=[],
    )


def test_round_trip(tmp_path: Path) -> None:
    made = small()
    file = tmp_path / "comparison.json"
    file.write_bytes(to_json(made))
    assert read(file) == made
    assert to_json(read(file)) == to_json(made)
    assert to_json(made).count(b"\n") == 1


def test_what_is_no_comparison_is_refused_with_the_reason(tmp_path: Path) -> None:
    later = msgspec.json.encode(msgspec.structs.replace(small(), version=VERSION + 1))
    with pytest.raises(UserError, match=rf"format {VERSION + 1}; this Stepwell reads format {VERSION}"):
        from_json(later)
    for data in (b"", b"{", b"[]", b'{"version": 1}', b'{"hello": 1}', b"\xff"):
        with pytest.raises(UserError, match=r"x\.json: is not a comparison"):
            from_json(data, source="x.json")
    with pytest.raises(UserError, match="cannot read"):
        read(tmp_path / "nowhere.json")


def test_labels() -> None:
    assert [each.label for each in (Point(0.9, 20.0), Point(None, 3.5), Point())] == ["load 0.9", "3.5/s", "own rate"]
