"""Paged attention against its truth: what is nobody's, or is still to come, holds not-a-number and must not be read."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

import torch

from stepwell.backends.kernels.attention import triton as attention
from stepwell.benchmarks.gpu import truth
from stepwell.benchmarks.gpu.bench import Bench
from stepwell.benchmarks.gpu.inputs import Heads, draw, heads_of, ints, paged, ragged
from stepwell.benchmarks.gpu.lines import Line

KEY = "correct"
OFF = "of the error that is allowed"
DTYPES = (torch.bfloat16, torch.float16)


def run(bench: Bench) -> None:
    bench.each("decode attention", lambda: decodes(bench), KEY)
    bench.each("prefill attention", lambda: prefills(bench), KEY)


def settings(bench: Bench) -> list[tuple[torch.dtype, Heads, int]]:
    """Heads and a window: as the model has them, with a window, with other pages, with a key-value head for each; on a
    card all of them in every dtype, and by the interpreter, which takes long, in one each."""
    own = heads_of(bench)
    layouts = [
        (own, 0),
        (own, 100 if bench.card else 7),
        (Heads(own.query, own.kv, own.dim, 1), 0),
        (Heads(own.query, own.query, own.dim // 2, 32), 0),
    ]
    found = [(dtype, *layout) for layout in layouts for dtype in DTYPES]
    return found if bench.card else [each for place, each in enumerate(found) if place % 4 in (0, 3)]


def decodes(bench: Bench) -> Iterator[Line]:
    for rows, longest in bench.scale.decode_checked:
        for dtype, heads, window in settings(bench):
            bench.check()
            lengths = [0, *ragged(rows - 1, longest)]
            it = paged(bench, heads, lengths, dtype, poisoned=True)
            query = draw(bench, rows, heads.query, heads.dim, dtype=dtype)
            out = torch.full_like(query, torch.nan)
            attention.paged_decode(
                query, it.keys, it.values, it.tables, ints(bench, lengths), window=window, longest=longest, out=out
            )
            wanted = torch.zeros(query.shape, device=bench.device)
            for row in range(1, rows):
                wanted[row] = truth.attention(query[row : row + 1], it, row, lengths[row] - 1, window)[0]
            yield bench.line(
                f"decode attention, {named(rows, longest, heads, window, dtype)}",
                truth.mixing(out, wanted),
                OFF,
                KEY,
            )


def prefills(bench: Bench) -> Iterator[Line]:
    """Slices behind a context each, one of them a single row, as a decoding request is, and one that is empty."""
    for slices, longest in bench.scale.prefill_checked:
        for dtype, heads, window in settings(bench):
            bench.check()
            counts = [1, 0, *ragged(slices, longest)]
            starts = [longest // 2, 0, *(longest // 3 * (place % 3) for place in range(slices))]
            it = paged(bench, heads, [a + b for a, b in zip(starts, counts, strict=True)], dtype, poisoned=True)
            firsts = [0, *accumulate(counts)]
            query = draw(bench, firsts[-1], heads.query, heads.dim, dtype=dtype)
            out = torch.full_like(query, torch.nan)
            attention.paged_prefill(
                query,
                it.keys,
                it.values,
                it.tables,
                ints(bench, firsts),
                ints(bench, starts),
                longest_slice=max(counts),
                window=window,
                out=out,
            )
            parts = [
                truth.attention(query[first : first + count], it, row, start, window)
                for row, (first, count, start) in enumerate(zip(firsts, counts, starts, strict=False))
            ]
            share = truth.mixing(out, torch.cat(parts))
            yield bench.line(f"prefill attention, {named(slices, longest, heads, window, dtype)}", share, OFF, KEY)


def named(rows: int, longest: int, heads: Heads, window: int, dtype: torch.dtype) -> str:
    what = f"{rows} × {longest:,}, {heads.query} and {heads.kv} heads of {heads.dim}, pages of {heads.page_size}"
    return f"{what}, {f'window {window}, ' if window else ''}{str(dtype).removeprefix('torch.')}"
