"""What one answer may be made of, whatever the model wishes: its place in a grammar, a list of tokens, bad words."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher
from llguidance.numpy import fill_next_token_bitmask

from stepwell.core.sampling import SamplingParams

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

    def fill(self, tokens: Sequence[int], start: int, ends: frozenset[int], into: Bits, place: int) -> str:
        """Put a bit for each token that may follow into a line of ``into``; returns what went wrong, if anything.

        The answer is ``tokens`` from ``start`` on, and what comes after one of ``ends`` is none of it.
        """
        if self._wrong or self._compiled is None:
            return self._wrong
        if self._matcher is None:
            self._matcher = self._compiled.deep_copy()
        for token in tokens[start + self._seen :]:
            self._over = self._over or token in ends
            if not self._over:
                self._matcher.consume_token(token)
        self._seen = len(tokens) - start
        if self._over:  # a step that was launched before it ended; nobody hears of what it says
            return ""
        fill_next_token_bitmask(self._matcher, into, place)
        if self._matcher.is_error():
            self._wrong = self._matcher.get_error().partition("\n")[0] or "llguidance gave up"
        return self._wrong


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
