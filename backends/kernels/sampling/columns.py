"""How each row of a step is sampled, as numbers on the device.

A row has ``WORDS`` words of 32 bits, a column each, which move with it when rows change places.  What takes more
(counts of tokens for penalties, lists of tokens) lies in a side place that the row's words name, so that a batch in
which few rows want such things pays for few.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from stepwell.backends import draws
from stepwell.core.errors import CapacityError
from stepwell.core.sampling import GREEDY_BELOW, SamplingParams

SCALE, TOP_K, SHARE, LEAST, REPETITION, PRESENCE, FREQUENCY, SEED, EARLY, SIDE = 0, 1, 2, 4, 6, 7, 8, 9, 11, 12
"""Where each word lies; those of 64 bits take two, the low half first."""
WORDS = 13
GREEDY_SCALE = -1.0
"""In place of a scale: the best token is taken."""
NO_SIDE = -1

EDITS = 320
"""Tokens of a row that are biased or barred; OpenAI's API takes 300."""
BIAS, BARRED_EARLY = range(2)
"""Kinds of edits: a number added to the score; barred until the answer is long enough."""


def words_of(sampling: SamplingParams, prompt_tokens: int, seed: int, side: int = NO_SIDE) -> list[int]:
    """The words of a request, as signed integers of 32 bits; ``side`` is its place in ``Sides``."""
    greedy = sampling.temperature < GREEDY_BELOW
    singles = (
        GREEDY_SCALE if greedy else float(draws.octaves(sampling.temperature)),
        *(sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty),
    )
    scale, repetition, presence, frequency = np.array(singles, np.float32).view(np.int32).tolist()
    early = prompt_tokens + sampling.min_tokens if sampling.min_tokens else 0
    return [
        *(scale, min(max(sampling.top_k, 0), (1 << 31) - 1)),
        *_halves(draws.share(sampling.top_p)),
        *_halves(draws.least_weight(sampling.min_p) if sampling.min_p > 0 else 0),
        *(repetition, presence, frequency),
        *_halves(seed),
        *(min(early, (1 << 31) - 1), side),
    ]


def _halves(number: int) -> tuple[int, int]:
    low, high = np.array([number & 0xFFFFFFFF, number >> 32 & 0xFFFFFFFF], np.uint32).view(np.int32).tolist()
    return low, high


def wants_side(sampling: SamplingParams) -> bool:
    """Whether a request's words do not say everything."""
    return bool(counts(sampling) or sampling.logit_bias or sampling.bad_words or sampling.min_tokens)


def counts(sampling: SamplingParams) -> bool:
    """Whether it has a penalty, which depends on how often each token came."""
    return bool(sampling.presence_penalty or sampling.frequency_penalty or sampling.repetition_penalty != 1.0)


class Sides:
    """``places`` side places, made once.

    ``notes`` [places, 2] int32: how many edits, whether counts hold.  ``edits`` [places, EDITS, 3] int32: token, kind,
    bits of a float32.  ``counts`` [places, vocabulary] int32: twice the times that the token is in the answer, and 1 if
    it is in the prompt; a draw counts its token there.
    """

    def __init__(self, places: int, vocabulary: int, device: torch.device) -> None:
        self.vocabulary = vocabulary
        self._free = list(range(places))[::-1]
        self.notes = torch.zeros((places, 2), dtype=torch.int32, device=device)
        self.edits = torch.zeros((places, EDITS, 3), dtype=torch.int32, device=device)
        self.counts = torch.zeros((places, vocabulary), dtype=torch.int32, device=device)

    @property
    def free(self) -> int:
        """Places that nobody has."""
        return len(self._free)

    def take(self) -> int:
        """A free place, with nothing in it.  Raises ``CapacityError`` if there is none."""
        if not self._free:
            raise CapacityError("no side place for another request's penalties", code="sampling_sides")
        place = self._free.pop()
        self.notes[place] = 0
        return place

    def give_back(self, place: int) -> None:
        self._free.append(place)

    def count(self, place: int, tokens: Sequence[int], prompt_tokens: int) -> None:
        """The request's tokens so far, of which the first ``prompt_tokens`` are its prompt."""
        counts = 2 * np.bincount(np.asarray(tokens[prompt_tokens:], np.int64), minlength=self.vocabulary)
        counts[np.unique(np.asarray(tokens[:prompt_tokens], np.int64))] += 1
        self.counts[place] = torch.from_numpy(counts.astype(np.int32))
        self.notes[place, 1] = 1

    def edit(self, place: int, sampling: SamplingParams, barred_early: Iterable[int] = ()) -> None:
        """``barred_early`` tokens must not come before ``min_tokens``, as long as there are others.  Raises
        ``CapacityError`` for more than ``EDITS`` tokens."""
        listed = [(token, BIAS, bias) for token, bias in sampling.logit_bias.items()]
        listed += [(token, BARRED_EARLY, 0.0) for token in sorted(set(barred_early))] if sampling.min_tokens else []
        listed = [each for each in listed if 0 <= each[0] < self.vocabulary]
        if len(listed) > EDITS:
            raise CapacityError(f"{len(listed)} biased or barred tokens; a device takes {EDITS}", code="sampling_edits")
        if listed:
            made = np.array([(*each[:2], 0) for each in listed], np.int32)
            made[:, 2] = np.array([each[2] for each in listed], np.float32).view(np.int32)
            self.edits[place, : len(listed)] = torch.from_numpy(made)
        self.notes[place, 0] = len(listed)
