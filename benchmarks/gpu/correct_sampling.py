"""Sampling and the product with int8 weights against plain torch.  Sampling is whole-number arithmetic, so its tokens
must be equal; interpreted, rows are cut into small pieces, as large ones would take minutes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from stepwell.backends.kernels.int8 import reference as plain_int8
from stepwell.backends.kernels.int8 import triton as int8
from stepwell.backends.kernels.sampling import columns, reference
from stepwell.backends.kernels.sampling import triton as sampling
from stepwell.benchmarks.gpu import truth
from stepwell.benchmarks.gpu.bench import Bench
from stepwell.benchmarks.gpu.inputs import draw, ints
from stepwell.benchmarks.gpu.lines import Line
from stepwell.core.sampling import SamplingParams

KEY = "correct"
OFF = "of the error that is allowed"
WAYS = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature 1": SamplingParams(temperature=1.0),
    "top-p 0.9": SamplingParams(temperature=0.8, top_p=0.9),
    "top-k 50, min-p 0.02": SamplingParams(temperature=1.2, top_k=50, min_p=0.02),
}
_TINY = sampling.Cut(chunk=64, block=32, tally_block=64, row_block=32, warps=1, row_warps=1)


def run(bench: Bench) -> None:
    bench.each("sampling", lambda: samples(bench), KEY)
    bench.each("product with int8 weights", lambda: products(bench), KEY)


def ways(bench: Bench) -> Mapping[str, SamplingParams]:
    """All of them on a card; interpreted, those that take no minute."""
    return WAYS if bench.card else dict(list(WAYS.items())[:2])


def cut_of(bench: Bench) -> sampling.Cut:
    return sampling.CUT if bench.card else _TINY


def words_of(bench: Bench, way: SamplingParams, rows: int) -> Tensor:
    """[words, rows] int32: every row with a seed of its own."""
    each = [columns.words_of(way, 1, 1_000_003 * row + 7) for row in range(rows)]
    return torch.tensor(each, dtype=torch.int32).T.contiguous().to(bench.device)


def samples(bench: Bench) -> Iterator[Line]:
    rows, vocabulary = bench.scale.sampled, bench.scale.model["vocab_size"]
    cut = cut_of(bench)
    logits = 4 * draw(bench, rows, vocabulary, dtype=torch.float32)
    lengths = ints(bench, range(1, rows + 1))
    sides = columns.Sides(1, vocabulary, bench.device)
    for what, way in ways(bench).items():
        bench.check()
        words = words_of(bench, way, rows)
        tokens, finite = sampling.sample(logits, words, lengths, sides=sides, cut=cut)
        wanted, good = reference.sample(logits, words, lengths, sides=sides)
        wrong = int((tokens != wanted).sum() + (finite != good).sum())
        yield bench.line(f"sampling, {rows} rows of {vocabulary:,}, {what}", 2.0 * wrong, OFF, KEY)


def products(bench: Bench) -> Iterator[Line]:
    model = bench.scale.model
    weight, scales = plain_int8.quantise(draw(bench, model["hidden"], model["hidden"], dtype=torch.float32))
    wide = weight.double() * scales.double()[:, None]
    for dtype in (torch.bfloat16, torch.float16):
        for rows in sorted({1, bench.scale.sampled}):
            bench.check()
            given = draw(bench, rows, model["hidden"], dtype=dtype)
            found = int8.int8_linear(given, weight, scales)
            name = str(dtype).removeprefix("torch.")
            share = truth.mixing(found, given.double() @ wide.T)
            yield bench.line(f"product with int8 weights, {rows} rows, {name}", share, OFF, KEY)
