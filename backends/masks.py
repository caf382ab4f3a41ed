"""Which tokens may come next: by grammar, by a list of allowed ones, by bad words.  No row can feel another.

What a grammar allows needs nothing of the model's scores, so it is found out beside the forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from llguidance import LLMatcher
from llguidance.numpy import fill_next_token_bitmask

from stepwell.backends.grammar import Grammars
from stepwell.core.errors import UserError
from stepwell.core.sampling import SamplingParams
from stepwell.core.types import RequestId

if TYPE_CHECKING:
    from stepwell.backends.batch import Row

Bools = np.ndarray[tuple[int], np.dtype[np.bool_]]
Bits = np.ndarray[tuple[int, int], np.dtype[np.int32]]


class Constraint:
    """Where one answer is in its grammar.  A function of the answer's tokens: it is told those that it has not seen."""

    def __init__(self, compiled: LLMatcher | None, ends: Sequence[int], wrong: str = "") -> None:
        """``ends`` are tokens that may come where the answer is whole; ``wrong`` says why nothing is compiled."""
        self.ends = ends
        self._compiled = compiled
        self._matcher: LLMatcher | None = None
        self._seen = 0
        self._over = False
        self._wrong = wrong

    def fill(self, row: Row, into: Bits, place: int) -> str:
        """Put a bit for each token that may follow into a line of ``into``; returns what went wrong, if anything."""
        if self._wrong or self._compiled is None:
            return self._wrong
        if self._matcher is None:
            self._matcher = self._compiled.deep_copy()
        for token in row.tokens[row.prompt_tokens + self._seen :]:
            self._over = self._over or token in row.ends
            if not self._over:
                self._matcher.consume_token(token)
        self._seen = row.generated
        if self._over:  # a step that was launched before it ended; nobody hears of what it says
            return ""
        fill_next_token_bitmask(self._matcher, into, place)
        if self._matcher.is_error():
            self._wrong = self._matcher.get_error() or "llguidance gave up"
        return self._wrong


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
            wrong = row.constraint.fill(row, made.bits, place)
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


def listed(sampling: SamplingParams, size: int) -> Bools | None:
    """The tokens of ``allowed_token_ids``; None if all are."""
    if not sampling.allowed_token_ids:
        return None
    allowed = np.zeros(size, np.bool_)
    allowed[[id for id in sampling.allowed_token_ids if id < size]] = True
    return allowed


def barred_by_words(bad_words: Sequence[Sequence[int]], answer: Sequence[int]) -> list[int]:
    """The last token of each bad word whose other tokens the answer ends with."""
    found = []
    for word in bad_words:
        before = len(word) - 1
        if before <= len(answer) and list(word[:before]) == list(answer[len(answer) - before :]):
            found.append(word[-1])
    return found
