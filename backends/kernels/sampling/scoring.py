"""Parts of the sampling kernels: words of a row, what a score becomes, and the draw, as ``backends/draws.py`` has it.

``of`` is what a row's scores are made from: (logits, stride of their rows, vocabulary, words, stride of their columns,
lengths, and the tensors of ``columns.Sides``: notes, edits, counts).
"""

from __future__ import annotations

import triton
import triton.language as tl

from stepwell.backends.draws import FAR, FRACTION, POLYNOMIAL, UNIT
from stepwell.backends.kernels.sampling import columns

SCALE = tl.constexpr(columns.SCALE)
TOP_K = tl.constexpr(columns.TOP_K)
SHARE = tl.constexpr(columns.SHARE)
LEAST = tl.constexpr(columns.LEAST)
_REPETITION = tl.constexpr(columns.REPETITION)
_PRESENCE = tl.constexpr(columns.PRESENCE)
_FREQUENCY = tl.constexpr(columns.FREQUENCY)
SEED = tl.constexpr(columns.SEED)
_EARLY = tl.constexpr(columns.EARLY)
SIDE = tl.constexpr(columns.SIDE)
_BIAS = tl.constexpr(columns.BIAS)
_C6 = tl.constexpr(POLYNOMIAL[0])
_C5 = tl.constexpr(POLYNOMIAL[1])
_C4 = tl.constexpr(POLYNOMIAL[2])
_C3 = tl.constexpr(POLYNOMIAL[3])
_C2 = tl.constexpr(POLYNOMIAL[4])
_C1 = tl.constexpr(POLYNOMIAL[5])
_FAR = tl.constexpr(FAR)
_ONE = tl.constexpr(float(1 << FRACTION))
_FRACTION = tl.constexpr(FRACTION)
_FRACTION_MASK = tl.constexpr((1 << FRACTION) - 1)
_LIFT = tl.constexpr(UNIT - FRACTION)
WORST = tl.constexpr(-(1 << 62))
NONE = tl.constexpr(1 << 30)


@triton.jit
def single(words, stride, row, word: tl.constexpr):
    """A word that is a float32."""
    return tl.load(words + word * stride + row).to(tl.float32, bitcast=True)


@triton.jit
def double(words, stride, row, word: tl.constexpr):
    """Two words that are an int64."""
    low = tl.load(words + word * stride + row).to(tl.int64) & 0xFFFFFFFF
    return (tl.load(words + (word + 1) * stride + row).to(tl.int64) << 32) | low


@triton.jit
def _mixed(x):
    x = x + 0x9E3779B97F4A7C15
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)


@triton.jit
def threshold(seed, position, total):
    """``draws.threshold``: from [0, total)."""
    mixed = _mixed(_mixed(seed.to(tl.uint64)) ^ (position.to(tl.uint64) * 0x9E3779B97F4A7C15))
    return tl.umulhi((mixed >> 11) << 11, total.to(tl.uint64)).to(tl.int64)


@triton.jit
def key_of(score):
    """An int32 in the order of scores; both zeros are one."""
    bits = score.to(tl.int32, bitcast=True)
    return tl.where(score == 0.0, 0, bits ^ ((bits >> 31) & 0x7FFFFFFF))


@triton.jit
def score_of(key):
    """Back from ``key_of``."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def weights(score, best, scale):
    """``draws.weights``, and by how many octaves each lies below the best."""
    below = tl.where(score == best, 0.0, best - score)
    near = below < float("inf")
    fixed = (tl.minimum(tl.where(near, below, 0.0) * scale, _FAR) * _ONE).to(tl.int32)
    fraction = (fixed & _FRACTION_MASK).to(tl.float32) * (1.0 / _ONE)
    power = fraction * _C6 + _C5
    power = power * fraction + _C4
    power = power * fraction + _C3
    power = power * fraction + _C2
    power = power * fraction + _C1
    power = power * fraction + 1.0
    octave = fixed >> _FRACTION
    weight = ((power * _ONE).to(tl.int64) << _LIFT) >> octave.to(tl.int64)
    return tl.where(near, weight, 0), tl.where(near, octave, 64)


@triton.jit
def judged(of, row, ids, inside, EDITS: tl.constexpr):
    """Of tokens of a row: the model's scores, what penalties and biases make of them, and the level of each.

    Only tokens of the highest level that any has are kept: 1 normally, 0 barred until the answer is long enough, -1
    outside of the vocabulary.
    """
    logits, row_stride, vocab, words, stride, lengths, notes, edits, counts = of
    raw = tl.load(logits + row.to(tl.int64) * row_stride + ids, mask=inside, other=float("-inf")).to(tl.float32)
    score = tl.where(raw != raw, float("-inf"), raw)
    level = tl.full(ids.shape, 1, tl.int32)
    side = tl.load(words + SIDE * stride + row).to(tl.int64)
    if side >= 0:
        if tl.load(notes + side * 2 + 1) != 0:
            count = tl.load(counts + side * vocab + ids, mask=inside, other=0)
            harder = single(words, stride, row, _REPETITION)
            softened = tl.where(score > 0, tl.div_rn(score, harder), score * harder)
            score = tl.where(count != 0, softened, score)
            said = count >> 1
            often = said.to(tl.float32) * single(words, stride, row, _FREQUENCY)
            score = tl.where(said != 0, score - (often + single(words, stride, row, _PRESENCE)), score)
        early = tl.load(lengths + row) < tl.load(words + _EARLY * stride + row)
        for index in range(tl.load(notes + side * 2)):
            edit = edits + (side * EDITS + index) * 3
            bias = tl.load(edit + 1) == _BIAS
            hit = ids == tl.load(edit)
            score = tl.where(hit & bias, score + tl.load(edit + 2).to(tl.float32, bitcast=True), score)
            level = tl.where(hit & early & (bias == 0), 0, level)
    return raw, score, tl.where(inside, level, -1)
