"""Which rows have a side place: penalties, biases and ``min_tokens`` that a device minds without the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from stepwell.backends.batch import Row
from stepwell.backends.kernels.sampling.columns import EDITS, NO_SIDE, Sides, counts, wants_side, words_of
from stepwell.core.types import RequestId

MOST = 64
"""Places, each of which keeps a count for every token of the vocabulary (512 KB for 128,000); who comes when all are
taken is settled on the host."""


class SideRows:
    """Gives a row its place when it is first sampled, and has it back when nobody computes it any more."""

    def __init__(self, running_limit: int, vocabulary: int, device: torch.device) -> None:
        self.sides = Sides(min(running_limit, MOST), vocabulary, device)
        self._held: dict[RequestId, tuple[Row, int]] = {}

    def knows(self, row: Row) -> bool:
        """Whether the device minds all that the row asks for."""
        return self._place(row) != NO_SIDE

    def words(self, row: Row) -> Sequence[int]:
        """How the row is sampled.  Its tokens so far are counted anew, so that nothing a failed step drew is left."""
        place = self._place(row)
        if row.id not in self._held and self.sides.free and _fits(row):
            place = self.sides.take()
            self._held[row.id] = row, place
            self.sides.edit(place, row.sampling, barred_early=row.barred)
        if place != NO_SIDE and counts(row.sampling):
            self.sides.count(place, row.tokens, row.prompt_tokens)
        return words_of(row.sampling, row.prompt_tokens, row.seed, place)

    def keep(self, wanted: Callable[[Row], bool]) -> None:
        """Places of rows that are not wanted any more are free."""
        for id, (row, place) in list(self._held.items()):
            if not wanted(row):
                del self._held[id]
                self.sides.give_back(place)

    def _place(self, row: Row) -> int:
        held = self._held.get(row.id)
        return held[1] if held is not None and held[0] is row else NO_SIDE


def _fits(row: Row) -> bool:
    """Grammars, lists of what may come, and words that may not are looked at token by token, on the host."""
    sampling = row.sampling
    if not wants_side(sampling) or sampling.bad_words or row.constraint is not None or row.listed is not None:
        return False
    return len(sampling.logit_bias) + (len(row.barred) if sampling.min_tokens else 0) <= EDITS
