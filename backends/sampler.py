"""From scores to the next token, one row at a time, so that no row can feel another.

Random draws are a function of (request seed, token position) and of nothing else; ``backends/draws.py`` is their
arithmetic, and ``kernels/sampling`` does the same for all rows of a step on a device, token for token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stepwell.backends.constraint import Bools, barred_by_words
from stepwell.backends.draws import Singles, Wholes, least_weight, octaves, reach, share, threshold, weights
from stepwell.core.sampling import GREEDY_BELOW, SamplingParams, TokenLogprob

Scores = np.ndarray[tuple[int], np.dtype[Any]]

_FEW = 1024
"""So many of the best are sorted first; all of them only if these do not suffice."""


def is_plain(sampling: SamplingParams, generated: int) -> bool:
    """Whether the next token is simply that of the highest score."""
    return (
        sampling.temperature < GREEDY_BELOW
        and not sampling.presence_penalty
        and not sampling.frequency_penalty
        and sampling.repetition_penalty == 1.0
        and not sampling.logit_bias
        and not sampling.bad_words
        and generated >= sampling.min_tokens
    )


def choose(
    logits: np.ndarray[tuple[int], np.dtype[np.float32]],
    sampling: SamplingParams,
    tokens: Sequence[int],
    prompt_tokens: int,
    seed: int,
    barred: frozenset[int],
    allowed: Bools | None = None,
) -> int:
    """The token after ``tokens``, of which the first ``prompt_tokens`` are the prompt.

    ``barred`` tokens are not chosen before ``min_tokens`` others, as long as there is another; and never one that is
    not ``allowed`` (None: all are).

    In this order: penalties, bias, masks, temperature, top-k, top-p, min-p, draw.  Scores are float32 throughout, and
    of equal ones the lower token is the better.
    """
    scores = _adjusted(logits, sampling, tokens, prompt_tokens)
    scores = masked(scores, allowed, _barred(sampling, tokens, prompt_tokens, barred))
    if sampling.temperature < GREEDY_BELOW:
        return int(scores.argmax())
    weight = weights(scores, scores.max(), octaves(sampling.temperature))
    ids = _nucleus(scores, weight, sampling)
    kept = weight if ids is None else weight[ids]
    if sampling.min_p > 0:
        kept = np.where(kept < least_weight(sampling.min_p), 0, kept)
    totals = kept.cumsum()
    place = int(np.searchsorted(totals, threshold(seed, len(tokens), int(totals[-1])), side="right"))
    return place if ids is None else int(ids[place])


def _adjusted(
    logits: np.ndarray[tuple[int], np.dtype[np.float32]],
    sampling: SamplingParams,
    tokens: Sequence[int],
    prompt_tokens: int,
) -> Singles:
    """Penalties look at the whole text (repetition) or at the output (presence, frequency), as the field has it."""
    scores = logits.astype(np.float32)
    with np.errstate(over="ignore"):
        if sampling.repetition_penalty != 1.0:
            seen, harder = np.unique(np.asarray(tokens, np.int64)), np.float32(sampling.repetition_penalty)
            mine = scores[seen]
            scores[seen] = np.where(mine > 0, mine / harder, mine * harder)
        if sampling.presence_penalty or sampling.frequency_penalty:
            said, times = np.unique(np.asarray(tokens[prompt_tokens:], np.int64), return_counts=True)
            often = np.float32(sampling.frequency_penalty) * times.astype(np.float32)
            scores[said] -= np.float32(sampling.presence_penalty) + often
        for token, bias in sampling.logit_bias.items():
            if 0 <= token < len(scores):
                scores[token] += np.float32(bias)
    return scores


def _barred(
    sampling: SamplingParams, tokens: Sequence[int], prompt_tokens: int, ends: frozenset[int]
) -> list[list[int]]:
    """Tokens that may not come now, the most binding reason first."""
    longest = max(map(len, sampling.bad_words), default=0)
    words = barred_by_words(sampling.bad_words, tokens[max(prompt_tokens, len(tokens) - longest) :])
    early = sorted(ends) if len(tokens) - prompt_tokens < sampling.min_tokens else []
    return [each for each in (words, early) if each]


def masked(scores: Scores, allowed: Bools | None, barred: Sequence[Sequence[int]] = ()) -> Scores:
    """Minus infinity for what is not ``allowed``, and for what is ``barred``: list after list, while any is left.

    Where nothing is allowed everything is.
    """
    if (allowed is None and not barred) or (allowed is not None and not allowed.any()):
        return scores
    kept = np.ones(len(scores), np.bool_) if allowed is None else allowed
    for each in barred:
        fewer = kept.copy()
        fewer[[token for token in each if token < len(scores)]] = False
        kept = fewer if fewer.any() else kept
    out = np.where(kept, scores, -np.inf).astype(scores.dtype, copy=False)
    # A model that gives all that may come a score of minus infinity has no wish: any of them will do.
    return out if out.max() > -np.inf else np.where(kept, 0.0, -np.inf).astype(scores.dtype)


def _nucleus(
    scores: Singles, weight: Wholes, sampling: SamplingParams
) -> np.ndarray[tuple[int], np.dtype[np.int64]] | None:
    """Tokens that top-k and top-p leave, the lowest first; None: all."""
    top_k = sampling.top_k if 0 < sampling.top_k < len(scores) else 0
    if not top_k and sampling.top_p >= 1.0:
        return None
    count = top_k or _FEW
    ids = _best(scores, count)
    running = weight[ids].cumsum()
    least = reach(share(sampling.top_p), int(running[-1]) if top_k else int(weight.sum()))
    if not top_k and running[-1] < least:
        ids = _best(scores, len(scores))
        running = weight[ids].cumsum()
    if sampling.top_p < 1.0:
        # Up to and including the one with which the mass is reached; always at least the best.
        ids = ids[: int(np.searchsorted(running, least, side="left")) + 1]
    return np.sort(ids)


def _best(scores: Scores, count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The ``count`` highest, best first; of equals the lower token first."""
    size = len(scores)
    if count >= size:
        return np.argsort(-scores, kind="stable")
    least = np.partition(scores, size - count)[size - count]
    ids = np.flatnonzero(scores >= least)
    return ids[np.argsort(-scores[ids], kind="stable")][:count]


def logprob(logits: np.ndarray[tuple[int], np.dtype[np.float32]], token: int, top: int) -> TokenLogprob:
    """The model's own log-probabilities (before penalties, bias and temperature)."""
    scores = logits.astype(np.float64)
    scores -= scores.max()
    scores -= np.log(np.exp(scores).sum())
    best = [] if top <= 0 else _best(scores, top).tolist()
    return TokenLogprob(float(scores[token]), [(each, float(scores[each])) for each in best])
