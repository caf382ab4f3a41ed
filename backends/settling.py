"""The tokens of a step's rows, once it is known which scored highest or were drawn.

What is odd is looked at by itself, on the host, so that no row can feel another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from stepwell.backends.batch import Row
from stepwell.backends.constraint import Bools
from stepwell.backends.masks import Allowed, may_follow
from stepwell.backends.runner import Told
from stepwell.backends.sampler import choose, is_plain, logprob, masked
from stepwell.core.protocols import StepResult
from stepwell.core.sampling import TokenLogprob
from stepwell.core.types import RequestId

Scores = np.ndarray[tuple[int], np.dtype[Any]]


class NotFiniteError(Exception):
    """The model's scores of some requests are no numbers."""

    def __init__(self, rows: list[Row]) -> None:
        super().__init__("the model's output is not finite")
        self.rows = rows


class Odd(msgspec.Struct, frozen=True):
    """A row whose scores must be looked at; ``stands``: the token that was found for it is right."""

    place: int
    row: Row
    mask: Bools | None
    stands: bool


def check_finite(rows: Sequence[Row], finite: Sequence[bool] | Sequence[int]) -> None:
    """Raises ``NotFiniteError`` with the rows whose scores are not."""
    if not all(finite):
        raise NotFiniteError([row for row, good in zip(rows, finite, strict=True) if not good])


def odd_rows(rows: Sequence[Row], vocabulary: int, allowed: Allowed | None, stands: Callable[[Row], bool]) -> list[Odd]:
    """Those of which ``stands`` does not hold, that may not say everything, or that want log-probabilities."""
    found = []
    for place, row in enumerate(rows):
        mask, right = may_follow(row, vocabulary, allowed), stands(row)
        if mask is not None or not right or row.sampling.logprobs >= 0:
            found.append(Odd(place, row, mask, right and mask is None))
    return found


def settle(
    odd: Sequence[Odd],
    scores: Iterable[Scores],
    tokens: list[int],
    live: Callable[[RequestId], bool],
    result: StepResult,
) -> None:
    """Put the right tokens in their places, and log-probabilities into ``result``."""
    for each, mine in zip(odd, scores, strict=True):
        row, sampling = each.row, each.row.sampling
        if not each.stands:
            tokens[each.place] = _token(row, mine, each.mask)
        if sampling.logprobs >= 0 and live(row.id):
            result.logprobs[row.id] = logprob(mine, tokens[each.place], sampling.logprobs)


def _token(row: Row, scores: Scores, mask: Bools | None) -> int:
    if is_plain(row.sampling, row.generated):
        return int(masked(scores, mask).argmax())
    return choose(scores, row.sampling, row.tokens, row.prompt_tokens, row.seed, row.barred, mask)


def say(rows: Sequence[Row], tokens: Sequence[int], live: Callable[[RequestId], bool], result: StepResult) -> None:
    """Every row has its token; of those that live it is reported."""
    for row, token in zip(rows, tokens, strict=True):
        row.tokens.append(token)
        if live(row.id):
            result.tokens.append((row.id, token))
            if token in row.ends:
                result.ended.append(row.id)
    result.ended.sort()


def teller(row: Row, into: list[tuple[RequestId, int, list[TokenLogprob]]]) -> Told | None:
    """Whoever makes log-probabilities of the scores of a prompt's own tokens."""
    top = row.sampling.prompt_logprobs
    if top < 0:
        return None

    def told(position: int, scores: Any) -> None:
        named = zip(scores.cpu().numpy(), row.tokens[position + 1 :], strict=False)
        into.append((row.id, position + 1, [logprob(each, token, top) for each, token in named]))

    return told
