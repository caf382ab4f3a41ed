"""The decode group on a device: whatever happens between two steps, its columns are those of the host's own group."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="needs the extra `model`")

from stepwell.backends.batch import DecodeGroup, Row  # noqa: E402
from stepwell.backends.device.group import DeviceGroup  # noqa: E402
from stepwell.backends.device.inputs import Inputs  # noqa: E402
from stepwell.backends.device.transfer import Here  # noqa: E402
from stepwell.core.errors import InvariantError  # noqa: E402
from stepwell.core.sampling import GREEDY  # noqa: E402

ROWS, WIDTH, SIZE, NOWHERE = 6, 5, 4, 99
Moves = st.lists(st.integers(0, 1 << 16), max_size=40)


def made_of(number: int, length: int) -> Row:
    row = Row(number, [number * 31 + place for place in range(length)], GREEDY, number, frozenset())
    row.table = [number * 7 % 90 + place for place in range(-(-length // SIZE))]
    return row


class Both:
    """The same done to both; ``look`` sends what changed and compares."""

    def __init__(self) -> None:
        self.inputs = Inputs(ROWS, WIDTH, 2, NOWHERE, SIZE, torch.device("cpu"))
        self.there = DeviceGroup(self.inputs, lambda row: (row.id, -row.id))
        self.here = DecodeGroup(NOWHERE)
        self.post, self.number = Here(), 0

    def join(self, length: int) -> None:
        self.number += 1
        row = made_of(self.number, length)
        for each in (self.there, self.here):
            each.join(row)

    def leave(self, id: int) -> None:
        for each in (self.there, self.here):
            each.leave(id)

    def grow(self, row: Row) -> None:
        row.table.append(row.id % 90 + 50)
        for each in (self.there, self.here):
            each.grow(row)

    def correct(self, row: Row, token: int) -> None:
        row.tokens[-1] = token
        self.here.tokens[self.here.rows.index(row)] = token
        self.there.correct(row, token)

    def step(self) -> None:
        self.look()
        rows = len(self.here)
        sampled = [1000 + row.id + len(row.tokens) for row in self.here.rows]
        self.inputs.advance(torch.tensor([*sampled, *[-1] * (ROWS - rows)], dtype=torch.int32))
        self.there.advance()
        self.here.advance(sampled)
        for row, token in zip(self.here.rows, sampled, strict=True):
            row.tokens.append(token)

    def clear(self) -> None:
        self.there.clear()
        self.here.clear()

    def look(self) -> None:
        self.inputs.apply(self.there.changes(), self.post)
        inputs, rows = self.inputs, len(self.here)
        assert [row.id for row in self.there.rows] == [row.id for row in self.here.rows]
        assert inputs.tokens[:rows].tolist() == self.here.tokens.tolist()
        assert inputs.positions[:rows].tolist() == self.here.positions.tolist()
        assert inputs.lengths.tolist() == [*(self.here.positions + 1), *[0] * (ROWS - rows)]
        assert inputs.sampling[:, :rows].T.tolist() == [[row.id, -row.id] for row in self.here.rows]
        assert np.array_equal(inputs.tables[:rows].numpy(), self.here.tables(WIDTH)[:, :WIDTH])
        assert self.there.longest == (int(self.here.positions.max()) + 1 if rows else 0)
        slots = inputs.slots(ROWS).tolist()
        assert all(slot // SIZE == NOWHERE for slot in slots[rows:])
        for slot, row, position in zip(slots, self.here.rows, self.here.positions, strict=False):
            assert position // SIZE >= len(row.table) or slot == row.table[position // SIZE] * SIZE + position % SIZE


@given(moves=Moves)
@settings(max_examples=150, deadline=None)
def test_columns_on_the_device_are_the_host_s(moves: list[int]) -> None:
    both = Both()
    for number in moves:
        kind = ("join", "leave", "grow", "step", "correct", "look", "clear")[number % 7]
        rows = both.here.rows
        row = rows[number // 7 % len(rows)] if rows else None
        if kind == "join" and len(rows) < ROWS:
            both.join(1 + number % (SIZE * WIDTH - 4))
        elif kind == "leave" and row is not None:
            both.leave(row.id)
        elif kind == "grow" and row is not None and len(row.table) < WIDTH:
            both.grow(row)
        elif kind == "correct" and row is not None:
            both.correct(row, number)
        elif kind == "step" and all(len(each.tokens) < SIZE * WIDTH for each in rows):
            both.step()
        elif kind == "clear" and not number % 5:
            both.clear()
        elif kind == "look":
            both.look()
    both.look()


def test_nothing_is_sent_if_nothing_changed() -> None:
    both = Both()
    both.join(3)
    assert both.there.changes()
    both.there.advance()
    assert not both.there.changes()


def test_more_than_there_is_room_for_is_refused() -> None:
    both = Both()
    for _ in range(ROWS):
        both.join(1)
    with pytest.raises(InvariantError, match="a group of 6; there is room for 6"):
        both.there.join(made_of(50, 1))
    both.leave(1)
    with pytest.raises(InvariantError, match="room for 6 of 5 pages"):
        both.there.join(made_of(51, SIZE * WIDTH + 1))
    row = both.there.rows[0]
    row.table = [1] * (WIDTH + 1)
    with pytest.raises(InvariantError, match="grows beyond the 5 pages"):
        both.there.grow(row)
