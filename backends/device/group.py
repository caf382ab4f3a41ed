"""The host's mirror of a decode group whose columns lie on a device: who is where, and what the device must be told."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from stepwell.backends.batch import Ints, Row
from stepwell.backends.device.inputs import LENGTH, TOKEN, Changes, Inputs
from stepwell.core.errors import InvariantError
from stepwell.core.types import Page, RequestId

_NEW = -1
"""Where a row lies of which the device knows nothing."""

Words = Callable[[Row], Sequence[int]]
"""How a row is sampled, as the columns ``Inputs.sampling`` have it."""


class DeviceGroup:
    """As ``batch.DecodeGroup``: the last member takes the place of one who leaves.

    What changes is gathered until ``changes`` takes it; between two steps everybody may come, go and grow in the order
    in which launches say it: leaves first, then pages, then joins.
    """

    def __init__(self, inputs: Inputs, words: Words) -> None:
        self.rows: list[Row] = []
        self._inputs, self._words = inputs, words
        self._places: dict[RequestId, int] = {}
        self._positions: Ints = np.zeros(inputs.rows, np.int64)
        self._lie: list[int] = []
        """Where each member's numbers lie on the device."""
        self._lain = 0
        """So many rows are somebody's there."""
        self._grown: list[tuple[Row, int, Page]] = []
        self._corrected: dict[RequestId, int] = {}
        self._moved = False

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def longest(self) -> int:
        """Positions that the longest member knows, its newest included."""
        return int(self._positions[: len(self.rows)].max()) + 1 if self.rows else 0

    def join(self, row: Row) -> None:
        """Raises ``InvariantError`` beyond the rows that there is room for."""
        place = len(self.rows)
        if place == self._inputs.rows or len(row.table) > self._inputs.width:
            raise InvariantError(
                f"request {row.id} of {len(row.table)} pages joins a group of {place}; there is room for"
                f" {self._inputs.rows} of {self._inputs.width} pages"
            )
        self.rows.append(row)
        self._places[row.id] = place
        self._positions[place] = len(row.tokens) - 1
        self._lie.append(_NEW)
        self._moved = True

    def leave(self, id: RequestId) -> None:
        """Ignores a request that is no member."""
        place = self._places.pop(id, -1)
        if place < 0:
            return
        last, lies = self.rows.pop(), self._lie.pop()
        if place < len(self.rows):
            self.rows[place], self._lie[place] = last, lies
            self._places[last.id] = place
            self._positions[place] = self._positions[len(self.rows)]
        self._moved = True

    def member(self, id: RequestId) -> Row | None:
        """The member of that id; it may have ended already."""
        place = self._places.get(id)
        return None if place is None else self.rows[place]

    def grow(self, row: Row) -> None:
        """The page appended last to the row's table belongs to it, if it is a member."""
        if row.id not in self._places:
            return
        if len(row.table) > self._inputs.width:
            raise InvariantError(f"request {row.id} grows beyond the {self._inputs.width} pages there is room for")
        self._grown.append((row, len(row.table) - 1, row.table[-1]))

    def correct(self, row: Row, token: int) -> None:
        """Its next token is not the one that the device sampled."""
        if row.id in self._places:
            self._corrected[row.id] = token

    def advance(self) -> None:
        """Every member computed its token and sampled the next."""
        self._positions[: len(self.rows)] += 1

    def clear(self) -> None:
        """Nobody is a member, here and there."""
        self.rows.clear()
        self._places.clear()
        self._lie.clear()
        self._grown.clear()
        self._corrected.clear()
        self._lain, self._moved = 0, False
        self._inputs.clear()

    def changes(self) -> Changes:
        """Since the last time."""
        made = Changes()
        if self._moved:
            self._settle(made)
        new = frozenset(made.emptied)
        for row, index, page in self._grown:
            place = self._places.get(row.id, -1)
            if place >= 0 and place not in new:  # the table of one who is new was sent whole
                self._set(made, [self._inputs.page(place, index)], [page])
        for id, token in self._corrected.items():
            place = self._places.get(id, -1)
            if place >= 0 and place not in new:
                self._set(made, [self._inputs.column(TOKEN, place)], [token])
        self._grown.clear()
        self._corrected.clear()
        return made

    def _settle(self, made: Changes) -> None:
        """Who lies elsewhere is moved, who is new is sent whole, and who left is nobody."""
        for place, lies in enumerate(self._lie):
            if lies == _NEW:
                row = self.rows[place]
                position = int(self._positions[place])
                made.emptied.append(place)
                numbers = [row.tokens[position], position, position + 1, *self._words(row)]
                self._set(made, *self._inputs.whole(place, numbers, row.table))
            elif lies != place:
                made.sources.append(lies)
                made.targets.append(place)
        left = range(len(self.rows), self._lain)
        if left:
            self._set(made, [self._inputs.column(LENGTH, place) for place in left], [0] * len(left))
        self._lie = list(range(len(self.rows)))
        self._lain, self._moved = len(self.rows), False

    def _set(self, made: Changes, places: Sequence[int] | Ints, values: Sequence[int] | Ints) -> None:
        made.places.append(np.asarray(places, np.int64))
        made.values.append(np.asarray(values, np.int64))
