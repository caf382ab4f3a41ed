"""Which tokens may come next, for all rows of a step.  No row can feel another.

What a grammar allows needs nothing of the model's scores, so it is found out beside the forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec
import numpy as np

from stepwell.backends.batch import Row
from stepwell.backends.constraint import Bits, Bools, Constraint
from stepwell.backends.grammar import Grammars
from stepwell.core.errors import UserError
from stepwell.core.sampling import SamplingParams
from stepwell.core.types import RequestId


class Allowed(msgspec.Struct):
    """What the grammars of a step allow, a line of ``bits`` for each constrained request; ``wrong`` says why not."""

    bits: Bits
    places: dict[RequestId, int]
    wrong: dict[RequestId, str]


class Masks:
    """The grammars of a backend's requests, and a thread in which their masks are made."""

    def __init__(self, grammars: Grammars) -> None:
        self.grammars = grammars
        self._thread = ThreadPoolExecutor(1, "stepwell-masks")

    def constraint(self, sampling: SamplingParams) -> Constraint | None:
        """Of a new request.  Its grammar is compiled by now (see ``Grammars.compiled``), or is compiled here."""
        if sampling.grammar is None:
            return None
        try:
            return Constraint(self.grammars.compiled(sampling.grammar), self.grammars.ends)
        except UserError as error:
            return Constraint(None, self.grammars.ends, error.message)

    def begin(self, rows: Sequence[Row]) -> Future[Allowed] | None:
        """Find out what may follow each of ``rows``; None if none minds.  They must not change until it is done."""
        held = [row for row in rows if row.constraint is not None]
        return self._thread.submit(self._fill, held) if held else None

    def close(self) -> None:
        self._thread.shutdown(wait=False)

    def _fill(self, rows: Sequence[Row]) -> Allowed:
        made = Allowed(np.zeros((len(rows), self.grammars.words), np.int32), {}, {})
        for place, row in enumerate(rows):
            assert row.constraint is not None
            made.places[row.id] = place
            wrong = row.constraint.fill(row.tokens, row.prompt_tokens, row.ends, made.bits, place)
            if wrong:
                made.bits[place] = 0
                made.wrong[row.id] = wrong
        return made


def may_follow(row: Row, size: int, allowed: Allowed | None) -> Bools | None:
    """By token, up to ``size`` (scores may be of more than the vocabulary has), never none; None: all of them."""
    place = None if allowed is None else allowed.places.get(row.id)
    if allowed is None or place is None or row.constraint is None:
        return row.listed
    bits, ends = allowed.bits[place].view(np.uint8), list(row.constraint.ends) or sorted(row.barred)
    mask = np.unpackbits(bits, count=size, bitorder="little").view(np.bool_)
    mask[ends] = mask[ends[:1]].any() or not mask.any()
    both = mask if row.listed is None else mask & row.listed
    return both if both.any() else mask
