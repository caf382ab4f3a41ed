"""The backend's mirror of requests, page tables and the decode group, brought up to date by what launches change.

A request's state is its tokens and how they are sampled; everything about pages can be lost and said again.
"""

from __future__ import annotations

import numpy as np

from stepwell.backends.constraint import Bools, Constraint
from stepwell.core.sampling import SamplingParams
from stepwell.core.types import Page, RequestId

Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


class Row:
    """One request.  ``tokens`` are its prompt and its output so far, whatever happens to its pages."""

    __slots__ = ("barred", "constraint", "ends", "id", "listed", "prompt_tokens", "sampling", "seed", "table", "tokens")

    def __init__(
        self, id: RequestId, tokens: list[int], sampling: SamplingParams, seed: int, end_tokens: frozenset[int]
    ) -> None:
        self.id = id
        self.tokens = tokens
        self.prompt_tokens = len(tokens)
        self.sampling = sampling
        self.seed = seed
        stops = frozenset(sampling.stop_token_ids)
        self.ends = stops if sampling.ignore_eos else end_tokens | stops
        """Tokens that end its answer."""
        self.barred = end_tokens | stops
        """Tokens that are not chosen before ``min_tokens``."""
        self.table: list[Page] = []
        self.constraint: Constraint | None = None
        """Where its answer is in its grammar, if it has one."""
        self.listed: Bools | None = None
        """The tokens it may be made of; None: all."""

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_tokens


class DecodeGroup:
    """The requests that decode together, as columns: next token, its position, page table.

    A step of the unchanged group touches no table; joining and leaving cost one row each.  Tables are padded with
    ``nowhere``, a page that belongs to nobody, so that not even a mistake could write into a neighbour's.
    """

    def __init__(self, nowhere: Page) -> None:
        self._nowhere = nowhere
        self.rows: list[Row] = []
        self._places: dict[RequestId, int] = {}
        self._tokens: Ints = np.zeros(8, np.int64)
        self._positions: Ints = np.zeros(8, np.int64)
        self._tables: Ints = np.full((8, 8), nowhere, np.int64)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def tokens(self) -> Ints:
        return self._tokens[: len(self.rows)]

    @property
    def positions(self) -> Ints:
        return self._positions[: len(self.rows)]

    def tables(self, pages: int) -> Ints:
        """The first ``pages`` of every table; shorter ones are padded."""
        self._widen(pages)
        return self._tables[: len(self.rows), :pages]

    def join(self, row: Row) -> None:
        place = len(self.rows)
        if place == len(self._tokens):
            self._tokens = np.resize(self._tokens, 2 * place)
            self._positions = np.resize(self._positions, 2 * place)
            self._tables = np.concatenate([self._tables, np.full_like(self._tables, self._nowhere)])
        self.rows.append(row)
        self._places[row.id] = place
        self._tokens[place] = row.tokens[-1]
        self._positions[place] = len(row.tokens) - 1
        self._widen(len(row.table))
        self._tables[place, : len(row.table)] = row.table
        self._tables[place, len(row.table) :] = self._nowhere

    def leave(self, id: RequestId) -> None:
        """The last member takes the free place.  Ignores a request that is no member."""
        place = self._places.pop(id, -1)
        if place < 0:
            return
        last = self.rows.pop()
        if place < len(self.rows):
            self.rows[place] = last
            self._places[last.id] = place
            for column in (self._tokens, self._positions, self._tables):
                column[place] = column[len(self.rows)]

    def member(self, id: RequestId) -> Row | None:
        """The member of that id; it may have ended already."""
        place = self._places.get(id)
        return None if place is None else self.rows[place]

    def grow(self, row: Row) -> None:
        """The page appended last to the row's table belongs to it, if it is a member."""
        place = self._places.get(row.id)
        if place is not None:
            self._widen(len(row.table))
            self._tables[place, len(row.table) - 1] = row.table[-1]

    def advance(self, tokens: list[int]) -> None:
        """Every member computed its token and sampled the next."""
        self.tokens[:] = tokens
        self.positions[:] += 1

    def clear(self) -> None:
        self.rows.clear()
        self._places.clear()

    def _widen(self, pages: int) -> None:
        width = self._tables.shape[1]
        if pages > width:
            self._tables = np.pad(
                self._tables, ((0, 0), (0, max(pages, 2 * width) - width)), constant_values=self._nowhere
            )
