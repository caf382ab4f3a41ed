"""Sampling on the device: no sort, no round trip, the same tokens as ``backends.sampler.choose`` to the last bit.

Three kernels.  ``_highest`` (a program for each row and chunk of the vocabulary) finds the best score.  ``_tally``, cut
up alike, adds up weights; of rows with top-k or top-p by octave below the best, so that it is known which octaves can
matter.  ``_draw`` (a program for each row) gathers the tokens of those octaves, mostly a few hundred, halves its way to
the least score that is kept, and draws.  Rows that are greedy leave ``_tally`` and ``_draw`` at once.  Sums are of
whole numbers (``backends/draws.py``), so nothing depends on how rows and chunks were cut.
"""

from __future__ import annotations

import msgspec
import torch
import triton
import triton.language as tl
from torch import Tensor

from stepwell.backends.kernels.ahead import Variant
from stepwell.backends.kernels.interpreted import mend
from stepwell.backends.kernels.sampling.columns import EDITS, Sides
from stepwell.backends.kernels.sampling.nucleus import drawn
from stepwell.backends.kernels.sampling.scoring import (
    LEAST,
    NONE,
    SCALE,
    SEED,
    SHARE,
    SIDE,
    TOP_K,
    WORST,
    double,
    judged,
    key_of,
    score_of,
    single,
    threshold,
    weights,
)

if triton.knobs.runtime.interpret:
    mend()

BINS = 16
"""Octaves below the best that are told apart; the last one is all that lies lower."""


class Cut(msgspec.Struct, frozen=True):
    """How the vocabulary is cut up: programs take ``chunk`` tokens each, ``block`` at a time."""

    chunk: int
    block: int
    tally_block: int
    """Of the program that adds up: a thread keeps ``BINS`` sums for each of its tokens."""
    row_block: int
    """Of the program that draws."""
    warps: int = 4
    row_warps: int = 8


CUT = Cut(4096, 1024, 256, 1024)
"""So that one row keeps much of a device busy; what is drawn does not depend on it."""


@triton.jit
def _highest(
    logits, row_stride, vocab, words, stride, lengths, notes, edits, counts, best, splits,
    EDITS: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of a chunk: the highest (level, score) as one number, the lowest token that has it, and whether scores are
    finite (1), all minus infinity (0), or anything else (2): ``best`` [rows, splits, 3] int64."""
    of = (logits, row_stride, vocab, words, stride, lengths, notes, edits, counts)
    row, split = tl.program_id(0), tl.program_id(1)
    top = tl.full([BLOCK], WORST, tl.int64)
    where = tl.full([BLOCK], NONE, tl.int32)
    state = tl.zeros([BLOCK], tl.int32)
    for start in range(0, CHUNK, BLOCK):
        ids = split * CHUNK + start + tl.arange(0, BLOCK)
        raw, score, level = judged(of, row, ids, ids < vocab, EDITS)
        wrong = (raw != raw) | (raw == float("inf"))
        state = tl.maximum(state, tl.where(wrong, 2, tl.where(raw > float("-inf"), 1, 0)))
        rank = (level.to(tl.int64) << 32) + key_of(score).to(tl.int64)
        where = tl.where(rank > top, ids, where)
        top = tl.maximum(top, rank)
    highest = tl.max(top, 0)
    out = best + (row.to(tl.int64) * splits + split) * 3
    tl.store(out, highest)
    tl.store(out + 1, tl.min(tl.where(top == highest, where, NONE), 0).to(tl.int64))
    tl.store(out + 2, tl.max(state, 0).to(tl.int64))


@triton.jit
def _best_of(best, row, splits, SPLITS: tl.constexpr):
    """Of a row: its best token, that one's level and score, and the state of its scores."""
    index = tl.arange(0, SPLITS)
    at = best + (row.to(tl.int64) * splits + index) * 3
    rank = tl.load(at, mask=index < splits, other=WORST)
    highest = tl.max(rank, 0)
    token = tl.min(tl.where(rank == highest, tl.load(at + 1, mask=index < splits, other=NONE), NONE), 0)
    state = tl.max(tl.load(at + 2, mask=index < splits, other=0), 0)
    level = (highest + 0x80000000) >> 32
    return token.to(tl.int32), level.to(tl.int32), score_of((highest - (level << 32)).to(tl.int32)), state


@triton.jit
def _limits(words, stride, row, vocab):
    """The row's k (0: all), and the share of the mass that it keeps (-1: all)."""
    k = tl.load(words + TOP_K * stride + row)
    return tl.where(k < vocab, k, 0), double(words, stride, row, SHARE)


@triton.jit
def _tally(
    logits, row_stride, vocab, words, stride, lengths, notes, edits, counts, best, tally, splits,
    EDITS: tl.constexpr, SPLITS: tl.constexpr, BINS: tl.constexpr, CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Of a chunk, [rows, splits, BINS] int64: with top-k the number of tokens in each octave, with top-p alone their
    weight, and otherwise, in the first bin, the weight of all that may be drawn."""
    of = (logits, row_stride, vocab, words, stride, lengths, notes, edits, counts)
    row, split = tl.program_id(0), tl.program_id(1)
    scale = single(words, stride, row, SCALE)
    if scale >= 0:
        best_token, kept_level, highest, state = _best_of(best, row, splits, SPLITS)
        k, share = _limits(words, stride, row, vocab)
        least = double(words, stride, row, LEAST)
        bins = tl.arange(0, BINS)
        sums = tl.zeros([BLOCK, BINS], tl.int64)
        for start in range(0, CHUNK, BLOCK):
            ids = split * CHUNK + start + tl.arange(0, BLOCK)
            raw, score, level = judged(of, row, ids, ids < vocab, EDITS)
            weight, octave = weights(score, highest, scale)
            if (k > 0) | (share != -1):
                octave = tl.minimum(octave, BINS - 1)
                weight = tl.where(k > 0, 1, weight)
            else:
                octave = octave * 0
                weight = tl.where(weight >= least, weight, 0)
            here = (octave[:, None] == bins[None, :]) & (level == kept_level)[:, None]
            sums += tl.where(here, weight[:, None], 0)
        tl.store(tally + (row.to(tl.int64) * splits + split) * BINS + bins, tl.sum(sums, 0))


@triton.jit
def _walked(
    of, row, kept_level, highest, scale, tally, splits, EDITS: tl.constexpr, SPLITS: tl.constexpr,
    BINS: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The token drawn from all that min-p leaves: the chunk is found by its sum, the token by walking through it."""
    vocab, words, stride, lengths = of[2], of[3], of[4], of[5]
    least = double(words, stride, row, LEAST)
    index = tl.arange(0, SPLITS)
    sums = tl.load(tally + (row.to(tl.int64) * splits + index) * BINS, mask=index < splits, other=0)
    draw = threshold(double(words, stride, row, SEED), tl.load(lengths + row), tl.sum(sums, 0))
    before = (tl.cumsum(sums, 0) <= draw) & (index < splits)
    draw -= tl.sum(tl.where(before, sums, 0), 0)
    start = tl.sum(before.to(tl.int32), 0) * CHUNK
    token = tl.full([], NONE, tl.int32)
    while (token == NONE) & (start < vocab):
        ids = start + tl.arange(0, BLOCK)
        raw, score, level = judged(of, row, ids, ids < vocab, EDITS)
        weight, octave = weights(score, highest, scale)
        weight = tl.where((level == kept_level) & (weight >= least), weight, 0)
        token = tl.min(tl.where(tl.cumsum(weight, 0) > draw, ids, NONE), 0)
        draw -= tl.sum(weight, 0)
        start += BLOCK
    return token


@triton.jit
def _draw(
    logits, row_stride, vocab, words, stride, lengths, notes, edits, counts, best, tally, splits, found, out,
    finite, EDITS: tl.constexpr, SPLITS: tl.constexpr, BINS: tl.constexpr, CHUNK: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The token of a row, 0 if its scores are not finite; counted in its side place, if it keeps counts."""
    of = (logits, row_stride, vocab, words, stride, lengths, notes, edits, counts)
    row = tl.program_id(0)
    token, level, highest, state = _best_of(best, row, splits, SPLITS)
    scale = single(words, stride, row, SCALE)
    if (scale >= 0) & (state == 1):
        k, share = _limits(words, stride, row, vocab)
        if (k > 0) | (share != -1):
            index = tl.arange(0, SPLITS)[:, None]
            bin = tl.arange(0, BINS)[None, :]
            at = tally + (row.to(tl.int64) * splits + index) * BINS + bin
            bins = tl.sum(tl.load(at, mask=index < splits, other=0), 0)
            mine = found + row.to(tl.int64) * vocab
            token = drawn(of, row, level, highest, scale, k, share, bins, mine, BINS, EDITS, BLOCK)
        else:
            token = _walked(of, row, level, highest, scale, tally, splits, EDITS, SPLITS, BINS, CHUNK, BLOCK)
    token = tl.where(state == 1, token, 0)
    tl.store(out + row, token.to(tl.int64))
    tl.store(finite + row, state == 1)
    side = tl.load(words + SIDE * stride + row).to(tl.int64)
    mine = (side >= 0) & (tl.load(lengths + row) > 0)  # a row that is nobody's has a place that is another's
    counted = tl.load(notes + side * 2 + 1, mask=mine, other=0) != 0
    at = counts + side * vocab + token
    tl.store(at, tl.load(at, mask=counted, other=0) + 2, mask=counted & (state == 1))


def sample(
    logits: Tensor,
    words: Tensor,
    lengths: Tensor,
    *,
    sides: Sides,
    out: Tensor | None = None,
    finite: Tensor | None = None,
    cut: Cut = CUT,
) -> tuple[Tensor, Tensor]:
    """As ``reference.sample``."""
    logits = logits.float()  # the model's own are; kernels for narrower ones would be compiled for nobody
    rows, vocabulary = logits.shape
    splits = triton.cdiv(vocabulary, cut.chunk)
    new = logits.new_empty
    out = new(rows, dtype=torch.int64) if out is None else out
    finite = new(rows, dtype=torch.bool) if finite is None else finite
    if not rows:
        return out, finite
    best = new((rows, splits, 3), dtype=torch.int64)
    tally = new((rows, splits, BINS), dtype=torch.int64)
    found = new((rows, vocabulary), dtype=torch.int64)
    lines = (sides.notes, sides.edits, sides.counts)
    of = (logits, logits.stride(0), vocabulary, words, words.stride(0), lengths, *lines)
    same = {"EDITS": EDITS, "CHUNK": cut.chunk, "enable_fp_fusion": False}
    wide = same | {"SPLITS": triton.next_power_of_2(splits), "BINS": BINS}
    grid = (rows, splits)
    _highest[grid](*of, best, splits, BLOCK=cut.block, num_warps=cut.warps, **same)
    _tally[grid](*of, best, tally, splits, BLOCK=cut.tally_block, num_warps=cut.warps, **wide)
    more = {"BLOCK": cut.row_block, "num_warps": cut.row_warps}
    _draw[(rows,)](*of, best, tally, splits, found, out, finite, **more, **wide)
    return out, finite


_OF = {
    "row_stride": "i32",
    "vocab": "i32",
    "words": "*i32",
    "stride": "i32",
    "lengths": "*i32",
    "notes": "*i32",
    "edits": "*i32",
    "counts": "*i32",
    "best": "*i64",
    "splits": "i32",
}
_TALLY = {"tally": "*i64"}
_WHY_STACK = "few enough registers that three programs share a multiprocessor; what lies in memory no loop touches"
_DRAW = {"found": "*i64", "out": "*i64", "finite": "*i1"}


def variants() -> list[Variant]:
    """Of up to 2**18 tokens."""
    narrow = {"EDITS": EDITS, "CHUNK": CUT.chunk, "BLOCK": CUT.block}
    wide = narrow | {"SPLITS": (1 << 18) // CUT.chunk, "BINS": BINS}
    return [
        Variant(
            kernel=kernel,
            signature={"logits": "*fp32", **_OF, **types},
            constants=constants,
            num_warps=warps,
            fused=False,
            why_spills=_WHY_STACK if kernel is _draw else "",
        )
        for kernel, types, constants, warps in (
            (_highest, {}, narrow, CUT.warps),
            (_tally, _TALLY, wide | {"BLOCK": CUT.tally_block}, CUT.warps),
            (_draw, _TALLY | _DRAW, wide | {"BLOCK": CUT.row_block}, CUT.row_warps),
        )
    ]
