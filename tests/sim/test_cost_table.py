"""Interpolated measurements: their laws, their edges, and the files that they come from."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.core.config import CostConfig
from stepwell.core.errors import UserError
from stepwell.core.protocols import BatchShape
from stepwell.core.registry import make_cost_model
from stepwell.core.testing_cost import COUNTS, counts, never_less, runs_are_steps, shapes
from stepwell.sim.cost.grid import Grid, raised
from stepwell.sim.cost.reach import reach_of
from stepwell.sim.cost.table import Table

axes = st.lists(st.integers(0, 5_000), min_size=1, max_size=5, unique=True).map(sorted).map(tuple)


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    rows, columns = draw(axes), draw(axes)
    values = [[draw(st.integers(0, 10**9)) for _ in columns] for _ in rows]
    return Grid(rows=rows, columns=columns, values=raised(values))


@st.composite
def tables(draw: st.DrawFn) -> Table:
    grid = st.one_of(st.none(), grids())
    decode, prefill = draw(grids()), draw(grid)
    price = st.integers(0, 10**6)
    options = Table.Options(
        base_ns=draw(st.integers(1, 10**7)),
        decode=decode,
        prefill=prefill,
        prefill_request_ns=draw(price),
        swap_page_ns=draw(price),
        copy_page_ns=draw(price),
    )
    return Table(options)


# ------------------------------------------------------------------------------------------------ laws


@given(tables(), shapes, st.sampled_from(COUNTS), counts)
@settings(max_examples=150)
def test_si_5_more_of_anything_never_takes_less(model: Table, shape: BatchShape, name: str, more: int) -> None:
    never_less(model, shape, name, more)


@given(tables(), shapes, st.integers(0, 10**15), st.integers(0, 30), st.integers(-10, 10**11))
def test_si_5_a_run_equals_its_steps(model: Table, shape: BatchShape, start_ns: int, steps: int, ahead_ns: int) -> None:
    runs_are_steps(model, shape, start_ns, steps, ahead_ns)


def naive(grid: Grid, row: int, column: int) -> Fraction:
    """Bilinear interpolation within the grid, as a textbook has it."""

    def along(axis: tuple[int, ...], at: int) -> list[tuple[int, Fraction]]:
        """Corners and their weights."""
        if at <= axis[0]:
            return [(0, Fraction(1))]
        if at >= axis[-1]:
            return [(len(axis) - 1, Fraction(1))]
        index = max(i for i, place in enumerate(axis) if place <= at)
        share = Fraction(at - axis[index], axis[index + 1] - axis[index])
        return [(index, 1 - share), (index + 1, share)]

    return sum(
        (a * b * grid.values[i][j] for i, a in along(grid.rows, row) for j, b in along(grid.columns, column)),
        Fraction(0),
    )


@given(grids(), st.integers(0, 5_000), st.integers(0, 5_000))
def test_within_the_grid_it_is_bilinear_rounded_down(grid: Grid, row: int, column: int) -> None:
    inside_row, inside_column = min(row, grid.rows[-1]), min(column, grid.columns[-1])
    assert grid.at(inside_row, inside_column) == int(naive(grid, inside_row, inside_column) // 1)


@given(grids(), st.integers(0, 9_000), st.integers(0, 9_000))
def test_a_line_of_the_grid_is_the_grid(grid: Grid, row: int, column: int) -> None:
    for at in (row, *grid.rows, grid.rows[-1] + 1):
        line = grid.line(at)
        for place in (column, *grid.columns, *(each + 1 for each in grid.columns)):
            assert line(place) == grid.at(at, place)


@given(grids())
def test_corners_are_what_was_measured(grid: Grid) -> None:
    for i, row in enumerate(grid.rows):
        for j, column in enumerate(grid.columns):
            assert grid.at(row, column) == grid.values[i][j]


def test_beyond_the_grid_the_last_cell_goes_on() -> None:
    """By hand: the far corner's slopes are 30 a row and 4 a column."""
    grid = Grid(rows=(0, 1, 2), columns=(0, 10), values=((0, 10), (5, 20), (10, 60)))
    assert grid.at(2, 10) == 60
    assert grid.at(3, 10) == 60 + 40
    assert grid.at(2, 12) == 60 + 10
    assert grid.at(4, 20) == 60 + 80 + 50
    assert grid.at(4, 0) == 10 + 80
    assert grid.at(1, 5) == 12


# ------------------------------------------------------------------------------------------------ case SI-5


MEASURED = Table.Options(
    base_ns=2_000_000,
    decode=Grid(
        rows=(1, 8, 64), columns=(1_000, 50_000), values=((0, 500_000), (100_000, 700_000), (900_000, 2_000_000))
    ),
    prefill=Grid(rows=(0, 512, 2_048), columns=(0,), values=((0,), (9_000_000,), (30_000_000,))),
    swap_page_ns=40_000,
)


@pytest.mark.parametrize("decoding", [0, 1, 64, 128])
@pytest.mark.parametrize("kv_tokens", [0, 1_000, 50_000, 500_000])
def test_si_5_outside_the_table_it_is_positive_and_flagged(decoding: int, kv_tokens: int) -> None:
    model = Table(MEASURED)
    shape = BatchShape(decode_requests=decoding, kv_tokens=kv_tokens)
    assert model.step_ns(shape) >= 2_000_000
    reach = reach_of(model)
    assert reach is not None
    assert reach.covers(shape) == (1 <= decoding <= 64 and 1_000 <= kv_tokens <= 50_000)


def test_si_5_extrapolation_names_the_counts() -> None:
    reach = reach_of(Table(MEASURED))
    assert reach is not None
    beyond = BatchShape(prefill_tokens=4_096, decode_requests=65, kv_tokens=50_001, swap_pages=3, copied_pages=1)
    assert reach.outside(beyond) == ["prefill_tokens", "decode_requests", "kv_tokens", "copied_pages"]


def test_a_calibrations_reach_is_believed() -> None:
    options = {
        "decode": {"rows": [0], "columns": [0], "values": [[5]]},
        "reach": {"kv_tokens": [3, 9], "error_p90": 0.02},
    }
    reach = reach_of(make_cost_model(CostConfig(model="table", options=options)))
    assert reach is not None
    assert (reach.kv_tokens, reach.error_p90) == ((3, 9), 0.02)


# ------------------------------------------------------------------------------------------------ refusals, files


def test_what_decreases_is_refused_with_the_corner() -> None:
    options = {"decode": {"rows": [1, 2], "columns": [0, 9], "values": [[10, 20], [8, 30]]}}
    with pytest.raises(UserError, match=r"8 at \(2, 0\) is below 10 at \(1, 0\)") as caught:
        make_cost_model(CostConfig(model="table", options=options))
    assert caught.value.field.startswith("cost.options.decode")


@given(st.lists(st.lists(st.integers(0, 50), min_size=3, max_size=3), min_size=1, max_size=4))
def test_raising_mends_and_raises_no_more_than_it_must(values: list[list[int]]) -> None:
    mended = raised(values)
    for i in range(len(values)):
        for j in range(3):
            assert mended[i][j] == max(values[k][m] for k in range(i + 1) for m in range(j + 1))
    Grid(rows=tuple(range(len(values))), columns=(0, 1, 2), values=mended)


@pytest.mark.parametrize(
    ("grid", "told"),
    [
        ({"rows": [2, 1], "columns": [0], "values": [[1], [2]]}, "rows must ascend, and 1 comes after 2"),
        ({"rows": [1], "columns": [0], "values": [[1], [2]]}, "values must be 1 lists of 1"),
        ({"rows": [1], "columns": [0], "values": [[-1]]}, "values"),
        ({"rows": [], "columns": [0], "values": []}, "rows"),
    ],
)
def test_impossible_grids_are_refused(grid: dict[str, object], told: str) -> None:
    with pytest.raises(UserError, match=told):
        make_cost_model(CostConfig(model="table", options={"decode": grid}))


def test_a_table_without_a_grid_is_refused() -> None:
    with pytest.raises(UserError, match="needs a grid"):
        make_cost_model(CostConfig(model="table"))


def test_files_hold_the_same_tables(tmp_path: Path) -> None:
    tree = {"base_ns": 7, "decode": {"rows": [0, 4], "columns": [0, 10], "values": [[0, 5], [6, 12]]}}
    (tmp_path / "table.json").write_text(json.dumps(tree))
    lines = ["grid,row,column,ns", "decode,4,10,12", "decode,0,0,0", "decode,4,0,6", "decode,0,10,5"]
    (tmp_path / "table.csv").write_text("\r\n".join(lines))
    inline = Table(Table.Options(base_ns=7, decode=Grid(rows=(0, 4), columns=(0, 10), values=((0, 5), (6, 12)))))
    for name in ("table.json", "table.csv"):
        options = {"file": str(tmp_path / name), "base_ns": 7}
        read = make_cost_model(CostConfig(model="table", options=options))
        for shape in (
            BatchShape(),
            BatchShape(decode_requests=3, kv_tokens=7),
            BatchShape(decode_requests=9, kv_tokens=99),
        ):
            assert read.step_ns(shape) == inline.step_ns(shape)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("t.json", "{", "not JSON"),
        ("t.json", '{"decoed": 1}', "unknown key 'decoed'"),
        ("t.csv", "a,b\n", "first line must be grid,row,column,ns"),
        ("t.csv", "grid,row,column,ns\ndecode,1,x,3\n", "line 2: row, column and ns are integers"),
        ("t.csv", "grid,row,column,ns\ndecode,1,2,3\ndecode,1,2,3\n", r"line 3: \(1, 2\) comes twice"),
        ("t.csv", "grid,row,column,ns\ndecode,1,2,3\ndecode,2,3,4\n", r"no corner at \(1, 3\)"),
    ],
)
def test_unusable_files_are_refused_by_name(tmp_path: Path, name: str, text: str, told: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UserError, match=told) as caught:
        make_cost_model(CostConfig(model="table", options={"file": str(path)}))
    assert caught.value.field == "cost.options.file"
    with pytest.raises(UserError, match="No such file"):
        make_cost_model(CostConfig(model="table", options={"file": str(tmp_path / "none.json")}))
