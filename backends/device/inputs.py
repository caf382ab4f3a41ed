"""What a decode step reads, kept on the device: tokens, positions, lengths, sampling, page tables.

A step changes it there: sampled tokens become the next tokens, positions and lengths grow.  The host sends only what it
alone knows (who joined, who left, new pages), as a list of places and values: one copy a step, and none if nothing
changed.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import torch
from torch import Tensor

from stepwell.backends.batch import Ints
from stepwell.backends.device.transfer import Post
from stepwell.core.types import Page

_OWN = 3
"""Columns beside those of sampling."""


class Changes(msgspec.Struct):
    """What the host knows and the device does not.  First rows are moved, then tables emptied, then numbers set."""

    sources: list[int] = []
    targets: list[int] = []
    """Rows that take another's place, with everything they have; all are read before any is written."""
    emptied: list[int] = []
    """Rows whose tables lead nowhere."""
    places: list[Ints] = []
    values: list[Ints] = []
    """Numbers of the flat memory.  No place is named twice."""

    def __bool__(self) -> bool:
        return bool(self.targets or self.emptied or self.places)


class Inputs:
    """``rows`` at most, ``width`` pages each; all int32.

    ``tokens``, ``positions`` and ``lengths``: [rows].  A row that is nobody's has length 0: it reads nothing, and
    writes to ``nowhere``, a page that belongs to nobody.  ``sampling``: [words, rows], as ``sampling`` on a device
    takes it.  ``tables``: [rows, width].
    """

    def __init__(self, rows: int, width: int, words: int, nowhere: Page, page_size: int, device: torch.device) -> None:
        self.rows, self.width, self._nowhere, self._page_size = rows, width, nowhere, page_size
        columns = (_OWN + words) * rows
        self._flat = torch.zeros(columns + rows * width, dtype=torch.int32, device=device)
        self._columns = self._flat[:columns].view(_OWN + words, rows)
        self.tokens, self.positions, self.lengths = self._columns[:_OWN]
        self.sampling = self._columns[_OWN:]
        self.tables = self._flat[columns:].view(rows, width)
        self.tables.fill_(nowhere)
        self._tables_at = columns

    @property
    def nbytes(self) -> int:
        return self._flat.numel() * self._flat.element_size()

    # ------------------------------------------------------------------------------------------------ by the host

    def column(self, name: int, place: int) -> int:
        """Where a number of a row lies in the flat memory."""
        return name * self.rows + place

    def page(self, place: int, index: int) -> int:
        """Where the page of that index lies."""
        return self._tables_at + place * self.width + index

    def whole(self, place: int, numbers: Sequence[int], table: Sequence[Page]) -> tuple[Ints, Ints]:
        """Places and values of a row: all its columns in order, and its table."""
        columns = np.arange(len(numbers)) * self.rows + place
        pages = self.page(place, 0) + np.arange(len(table))
        return np.concatenate([columns, pages]), np.array([*numbers, *table], np.int64)

    def apply(self, changes: Changes, post: Post) -> None:
        """One copy to the device, and what is there is changed."""
        if not changes:
            return
        lists = [np.array(each, np.int64) for each in (changes.sources, changes.targets, changes.emptied)]
        numbers = [np.concatenate([_NONE, *each]) for each in (changes.places, changes.values)]
        sources, targets, emptied, places, values = post.send([*lists, *numbers])
        if changes.targets:
            self._columns.index_copy_(1, targets, self._columns.index_select(1, sources))
            self.tables.index_copy_(0, targets, self.tables.index_select(0, sources))
        if changes.emptied:
            self.tables.index_fill_(0, emptied, self._nowhere)
        if changes.places:
            self._flat.index_copy_(0, places, values.int())

    def clear(self) -> None:
        """Nobody is there."""
        self.lengths.zero_()

    # ------------------------------------------------------------------------------------------------ by a step

    def slots(self, rows: int) -> Tensor:
        """Where the keys of the first ``rows`` go: [rows] int64."""
        positions = self.positions[:rows]
        index = torch.div(positions, self._page_size, rounding_mode="floor")
        pages = self.tables[:rows].gather(1, index.long()[:, None])[:, 0]
        pages = pages.masked_fill(self.lengths[:rows] == 0, self._nowhere)
        slots: Tensor = pages.long() * self._page_size + positions.remainder(self._page_size)
        return slots

    def advance(self, sampled: Tensor) -> None:
        """The first rows computed their tokens and sampled the next ones, [rows] int32."""
        rows = len(sampled)
        live = (self.lengths[:rows] > 0).int()
        self.tokens[:rows] = sampled
        self.positions[:rows] += live
        self.lengths[:rows] += live


_NONE = np.zeros(0, np.int64)
TOKEN, POSITION, LENGTH = range(_OWN)
"""Names of columns; those of sampling come after them."""
