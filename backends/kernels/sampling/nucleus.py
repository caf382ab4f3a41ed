"""Part of the sampling kernels: the draw of a row of which top-k and top-p leave only the best.

Its candidates, the tokens of the octaves that can matter, are gathered in the order of their numbers, each as one
int64: what its score became (``key_of``) above its number, so that nothing is judged again.  Then the least score that
is kept is found by halving: each time the range shrinks to scores that some candidate has, so a few hundred candidates
take about nine rounds.
"""

from __future__ import annotations

import triton
import triton.language as tl

from stepwell.backends.kernels.sampling.scoring import (
    LEAST,
    NONE,
    SEED,
    double,
    judged,
    key_of,
    score_of,
    threshold,
    weights,
)


@triton.jit
def reach(share, mass):
    """``draws.reach``: the least weight that is no less than a share of ``mass``."""
    part, whole = share.to(tl.uint64), mass.to(tl.uint64)
    rest = (part * whole) != 0
    return tl.maximum(tl.umulhi(part, whole).to(tl.int64) + rest.to(tl.int64), 1)


@triton.jit
def candidates(of, row, level, highest, scale, limit, found, EDITS: tl.constexpr, BLOCK: tl.constexpr):
    """Store the tokens up to octave ``limit`` in ``found``, ascending.  Returns how many, and the least of their keys.

    ``level`` and ``highest`` are the best token's.
    """
    vocab = of[2]
    count = tl.full([], 0, tl.int32)
    lowest = key_of(highest)
    for start in range(0, vocab, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        raw, score, levels = judged(of, row, ids, ids < vocab, EDITS)
        weight, octave = weights(score, highest, scale)
        kept = (levels == level) & (octave <= limit)
        key = key_of(score)
        place = tl.cumsum(kept.to(tl.int32), 0) - 1
        tl.store(found + count + place, (key.to(tl.int64) << 32) | ids.to(tl.int64), mask=kept)
        count += tl.sum(kept.to(tl.int32), 0)
        lowest = tl.minimum(lowest, tl.min(tl.where(kept, key, lowest), 0))
    tl.debug_barrier()  # what some threads stored others read
    return count, lowest


@triton.jit
def candidate(highest, scale, found, at, count):
    """Of the candidates at these places: whether there is one, its number, key and weight."""
    inside = at < count
    both = tl.load(found + at, mask=inside, other=0)
    key = (both >> 32).to(tl.int32)
    weight, octave = weights(score_of(key), highest, scale)
    return inside, both.to(tl.int32), key, weight


@triton.jit
def weight_above(highest, scale, found, count, key, BLOCK: tl.constexpr):
    """What the candidates above ``key`` weigh together."""
    total = tl.full([], 0, tl.int64)
    for start in range(0, count, BLOCK):
        at = start + tl.arange(0, BLOCK)
        inside, ids, keys, weight = candidate(highest, scale, found, at, count)
        total += tl.sum(tl.where(inside & (keys > key), weight, 0), 0)
    return total


@triton.jit
def least_key(highest, scale, found, count, lowest, need, WEIGHED: tl.constexpr, BLOCK: tl.constexpr):
    """The highest key such that the candidates of it and above are, or weigh, at least ``need``; those of ``lowest``,
    which some candidate has, and above do.  And how many those above it are, or what they weigh."""
    end = key_of(highest) + 1
    beyond = tl.full([], 0, tl.int64)  # of those from `end` on
    while end > lowest + 1:
        middle = ((lowest.to(tl.int64) + end) >> 1).to(tl.int32)
        total = tl.full([], 0, tl.int64)
        over, under = end, lowest
        for start in range(0, count, BLOCK):
            at = start + tl.arange(0, BLOCK)
            inside, ids, keys, weight = candidate(highest, scale, found, at, count)
            high = inside & (keys >= middle)
            total += tl.sum(tl.where(high, weight if WEIGHED else 1, 0).to(tl.int64), 0)
            over = tl.minimum(over, tl.min(tl.where(high, keys, end), 0))
            under = tl.maximum(under, tl.max(tl.where(inside & (keys < middle), keys, lowest), 0))
        enough = total >= need
        lowest = tl.where(enough, over, lowest)
        end = tl.where(enough, end, under + 1)
        beyond = tl.where(enough, beyond, total)
    return lowest, beyond


@triton.jit
def draw_kept(of, row, highest, scale, found, count, key, ties, BLOCK: tl.constexpr):
    """A token of those above ``key`` and the first ``ties`` of it that min-p leaves."""
    words, stride, lengths = of[3], of[4], of[5]
    least = double(words, stride, row, LEAST)
    token = tl.full([], NONE, tl.int32)
    draw = tl.full([], 0, tl.int64)
    for walk in tl.static_range(2):  # first what they weigh, then the token
        total, equal = tl.full([], 0, tl.int64), tl.full([], 0, tl.int64)
        start = tl.full([], 0, tl.int32)
        while (start < count) & (token == NONE):
            at = start + tl.arange(0, BLOCK)
            inside, ids, keys, weight = candidate(highest, scale, found, at, count)
            tied = (inside & (keys == key)).to(tl.int64)
            kept = inside & ((keys > key) | ((tied != 0) & (equal + tl.cumsum(tied, 0) <= ties)))
            weight = tl.where(kept & (weight >= least), weight, 0)
            if walk == 1:
                passed = inside & (total + tl.cumsum(weight, 0) > draw)
                token = tl.min(tl.where(passed, ids, NONE), 0)
            total += tl.sum(weight, 0)
            equal += tl.sum(tied, 0)
            start += BLOCK
        if walk == 0:
            draw = threshold(double(words, stride, row, SEED), tl.load(lengths + row), total)
    return token


@triton.jit
def drawn(
    of, row, level, highest, scale, k, share, bins, found, BINS: tl.constexpr, EDITS: tl.constexpr, BLOCK: tl.constexpr
):
    """The token.  ``bins`` [BINS] holds the row's tally; ``found`` has room for the vocabulary."""
    whole = tl.sum(bins, 0)
    need = tl.minimum(k.to(tl.int64), whole)
    if k == 0:
        need = reach(share, whole)
    limit = tl.sum((tl.cumsum(bins, 0) < need).to(tl.int32), 0)
    limit = tl.where(limit >= BINS - 1, NONE, limit)
    count, key = candidates(of, row, level, highest, scale, limit, found, EDITS, BLOCK)
    ties = count.to(tl.int64)
    if k > 0:
        key, more = least_key(highest, scale, found, count, key, need, False, BLOCK)
        ties = need - more
    if share != -1:
        if k > 0:
            each, octave = weights(score_of(key), highest, scale)
            whole = weight_above(highest, scale, found, count, key, BLOCK) + ties * each
        need = reach(share, whole)
        before = key
        key, heavier = least_key(highest, scale, found, count, key, need, True, BLOCK)
        each, octave = weights(score_of(key), highest, scale)
        each = tl.maximum(each, 1)
        fewer = (need - heavier + each - 1) // each
        ties = tl.where(key == before, tl.minimum(ties, fewer), fewer)
    return draw_kept(of, row, highest, scale, found, count, key, ties, BLOCK)
