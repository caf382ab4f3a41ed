"""A function of two counts, given at the corners of a grid, in integers.

Between corners it is bilinear, computed exactly and rounded down once.  Before the first corner of an axis it stays
what it is there.  Beyond the last it goes on linearly, along each axis with the slope that the grid's last cell has at
its far corner.  Corners do not decrease along either axis; then nothing in between or beyond does.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Annotated

import msgspec

Corner = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Axis = Annotated[tuple[Corner, ...], msgspec.Meta(min_length=1, max_length=4096)]


class Grid(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """``values[i][j]`` belongs to ``rows[i]`` and ``columns[j]``.  One place on an axis: it does not matter."""

    rows: Axis
    columns: Axis
    values: Annotated[tuple[tuple[Corner, ...], ...], msgspec.Meta(min_length=1, max_length=4096)]

    def __post_init__(self) -> None:
        problem = _fault(self.rows, self.columns, self.values)
        if problem:
            raise ValueError(problem)

    def at(self, row: int, column: int) -> int:
        """Its value there, rounded down."""
        rows, columns, values = self.rows, self.columns, self.values
        beyond = 0
        if row > rows[-1]:
            if len(rows) > 1:
                beyond += (values[-1][-1] - values[-2][-1]) * (row - rows[-1]) // (rows[-1] - rows[-2])
            row = rows[-1]
        if column > columns[-1]:
            if len(columns) > 1:
                beyond += (values[-1][-1] - values[-1][-2]) * (column - columns[-1]) // (columns[-1] - columns[-2])
            column = columns[-1]
        i, up, height = _place(rows, row)
        j, right, width = _place(columns, column)
        low = values[i][j] * (width - right) + (values[i][j + 1] * right if right else 0)
        if not up:
            return low // width + beyond
        high = values[i + 1][j] * (width - right) + (values[i + 1][j + 1] * right if right else 0)
        return (low * (height - up) + high * up) // (height * width) + beyond

    def line(self, row: int) -> Callable[[int], int]:
        """The same function of the column alone, for many columns of one row."""
        rows, columns, values = self.rows, self.columns, self.values
        i, up, height = _place(rows, min(row, rows[-1]))
        scaled, height = list(values[i]), height if up else 1
        if up:
            scaled = [low * (height - up) + high * up for low, high in zip(values[i], values[i + 1], strict=True)]
        ahead = self.at(row, 0) - self.at(min(row, rows[-1]), 0)
        first, last = columns[0], columns[-1]
        rise, run = (values[-1][-1] - values[-1][-2], last - columns[-2]) if len(columns) > 1 else (0, 1)

        def at(column: int) -> int:
            if column >= last:
                return scaled[-1] // height + ahead + rise * (column - last) // run
            if column <= first:
                return scaled[0] // height + ahead
            j = bisect_right(columns, column) - 1
            right, width = column - columns[j], columns[j + 1] - columns[j]
            return (scaled[j] * (width - right) + scaled[j + 1] * right) // (height * width) + ahead

        return at


def _place(axis: Sequence[int], at: int) -> tuple[int, int, int]:
    """The cell that ``at`` is in, how far into it, and how long it is."""
    if at <= axis[0]:
        return 0, 0, 1
    index = min(bisect_right(axis, at), len(axis) - 1) - 1
    if at == axis[-1]:
        return len(axis) - 1, 0, 1
    return index, at - axis[index], axis[index + 1] - axis[index]


def raised(values: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """The least values that are nowhere below ``values`` and decrease along neither axis: for noisy measurements."""
    done: list[list[int]] = []
    for row in values:
        line: list[int] = []
        for j, value in enumerate(row):
            line.append(max(value, line[-1] if line else 0, done[-1][j] if done else 0))
        done.append(line)
    return tuple(map(tuple, done))


def _fault(rows: Sequence[int], columns: Sequence[int], values: Sequence[Sequence[int]]) -> str:
    """What is wrong with a grid; empty if it is one."""
    for name, axis in (("rows", rows), ("columns", columns)):
        for one, next_one in pairwise(axis):
            if next_one <= one:
                return f"{name} must ascend, and {next_one} comes after {one}"
    if len(values) != len(rows) or any(len(line) != len(columns) for line in values):
        return f"values must be {len(rows)} lists of {len(columns)}, one for each of rows"
    for i, line in enumerate(values):
        for j, value in enumerate(line):
            before = [(values[i - 1][j], i - 1, j)] if i else []
            before += [(line[j - 1], i, j - 1)] if j else []
            for other, k, m in before:
                if value < other:
                    return (
                        f"more may not take less: {value} at ({rows[i]}, {columns[j]}) is below {other} at"
                        f" ({rows[k]}, {columns[m]}); stepwell.sim.cost.grid.raised mends that"
                    )
    return ""
