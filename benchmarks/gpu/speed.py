"""How long every kernel takes, as a share of what the card does in the simplest case: a copy, or a square product."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from stepwell.backends.kernels.attention import triton as attention
from stepwell.backends.kernels.int8 import triton as int8
from stepwell.backends.kernels.int8.reference import quantise
from stepwell.backends.kernels.norm import triton as norm
from stepwell.backends.kernels.pages import triton as pages
from stepwell.backends.kernels.rope import triton as rope
from stepwell.backends.kernels.sampling import triton as sampling
from stepwell.backends.kernels.sampling.columns import Sides
from stepwell.backends.kernels.swiglu import triton as gate
from stepwell.benchmarks.gpu import correct_sampling
from stepwell.benchmarks.gpu.bench import Bench
from stepwell.benchmarks.gpu.inputs import draw, heads_of, ints, paged
from stepwell.benchmarks.gpu.lines import Line, shown
from stepwell.benchmarks.gpu.stopwatch import copy_bandwidth, matrix_rate

MUCH_KV = 4 << 30
"""From here on decode attention is held to its target: less may lie in a cache, or be too little for the card."""


@dataclass(frozen=True)
class Rates:
    """What is reached in the simplest cases."""

    bench: Bench
    copy: float
    """Bytes a second, those read and those written."""
    products: float
    """Operations a second."""

    def bytes(self, what: str, work: Callable[[], object], moved: int, target: str = "") -> Line:
        """``moved``: read and written by ``work``, at least."""
        took_s = self.bench.stopwatch.seconds(work)
        rate = moved / took_s
        note = f"{shown(took_s * 1e6)} µs, {shown(rate / 1e9)} GB/s"
        more = {"seconds": took_s, "bytes": moved}
        return self.bench.line(what, 100 * rate / self.copy, "% of a copy", target, note, **more)

    def operations(self, what: str, work: Callable[[], object], done: int) -> Line:
        took_s = self.bench.stopwatch.seconds(work)
        rate = done / took_s
        note = f"{shown(took_s * 1e6)} µs, {shown(rate / 1e12)} TFLOP/s"
        more = {"seconds": took_s, "operations": done}
        return self.bench.line(what, 100 * rate / self.products, "% of a product", "", note, **more)


def run(bench: Bench) -> None:
    rates = Rates(
        bench,
        copy_bandwidth(bench.stopwatch, bench.device, bench.scale.copied),
        matrix_rate(bench.stopwatch, bench.device, bench.scale.matrix, bench.dtype),
    )
    bench.each("decode attention", lambda: decodes(rates), "attention")
    bench.each("prefill attention", lambda: prefills(rates))
    bench.each("kernels between products", lambda: between(rates))
    bench.each("copies of pages", lambda: page_copies(rates))
    bench.each("sampling", lambda: samples(rates))
    bench.each("product with int8 weights", lambda: products(rates))


def decodes(rates: Rates) -> Iterator[Line]:
    from stepwell.backends.kernels.attention import (
        triton as attention,
    )  # lazy: one kernel that is missing is no other's loss

    bench, heads = rates.bench, heads_of(rates.bench)
    for rows, context in bench.scale.decode_timed:
        bench.check()
        it = paged(bench, heads, [context] * rows, bench.dtype)
        query = draw(bench, rows, heads.query, heads.dim)
        out, lengths = torch.empty_like(query), ints(bench, it.lengths)
        moved = 2 * rows * context * heads.kv * heads.dim * bench.dtype.itemsize

        def work() -> None:
            attention.paged_decode(query, it.keys, it.values, it.tables, lengths, longest=context, out=out)  # noqa: B023

        what = f"decode attention, {rows} × {context:,} ({moved / 2**30:.2f} GiB of KV)"
        yield rates.bytes(what, work, moved, "attention" if moved >= MUCH_KV or not bench.card else "")


def prefills(rates: Rates) -> Iterator[Line]:
    bench, heads = rates.bench, heads_of(rates.bench)
    for slices, count in bench.scale.prefill_timed:
        bench.check()
        it = paged(bench, heads, [count] * slices, bench.dtype)
        query = draw(bench, slices * count, heads.query, heads.dim)
        out = torch.empty_like(query)
        firsts, starts = ints(bench, range(0, slices * count + 1, count)), ints(bench, [0] * slices)
        done = 4 * heads.query * heads.dim * slices * count * (count + 1) // 2

        def work() -> None:
            attention.paged_prefill(query, it.keys, it.values, it.tables, firsts, starts, longest_slice=count, out=out)  # noqa: B023

        yield rates.operations(f"prefill attention, {slices} × {count:,}", work, done)


def between(rates: Rates) -> Iterator[Line]:
    """What lies between the products of a layer."""
    bench, heads, model = rates.bench, heads_of(rates.bench), rates.bench.scale.model
    hidden, inner, size = model["hidden"], model["intermediate"], bench.dtype.itemsize
    weight = draw(bench, hidden, dtype=torch.float32)
    frequencies = draw(bench, heads.dim // 2, dtype=torch.float32).abs()
    for rows in bench.scale.rows:
        bench.check()
        states, added = draw(bench, rows, hidden, dtype=torch.float32), draw(bench, rows, hidden)
        out = torch.empty_like(added)
        moved = rows * hidden * (8 + 2 * size)
        yield rates.bytes(
            f"residual sum and norm, {rows:,} rows",
            lambda: norm.add_norm(states, added, weight, 1e-5, bench.dtype, out=out),  # noqa: B023
            moved,
        )
        both, product = draw(bench, rows, 2 * inner), draw(bench, rows, inner)
        yield rates.bytes(f"gate, {rows:,} rows", lambda: gate.swiglu(both, out=product), 3 * rows * inner * size)  # noqa: B023
        every = heads.query + 2 * heads.kv
        qkv, query = draw(bench, rows, every, heads.dim), draw(bench, rows, heads.query, heads.dim)
        cache = [draw(bench, rows + 1, 1, heads.kv, heads.dim) for _ in range(2)]
        places = ints(bench, range(rows)), ints(bench, range(rows), torch.int64)
        yield rates.bytes(
            f"rotary positions and the write of keys, {rows:,} rows",
            lambda: rope.rotate_and_write(qkv, places[0], frequencies, places[1], *cache, heads=heads.query, out=query),  # noqa: B023
            2 * rows * every * heads.dim * size,
        )


def page_copies(rates: Rates) -> Iterator[Line]:
    bench, heads, layers = rates.bench, heads_of(rates.bench), rates.bench.scale.model["layers"]
    count = bench.scale.swapped // 4 + 1
    keys, values = (draw(bench, layers, 2 * count, heads.page_size, heads.kv, heads.dim) for _ in range(2))
    some = torch.randperm(2 * count)
    here, there = some[:count].to(bench.device), some[count:].to(bench.device)
    staged = keys.new_empty((count, 2, layers, *keys.shape[2:]))
    moved = 2 * staged.nbytes
    what = f"{count:,} pages ({staged.nbytes / 2**20:,.0f} MiB)"
    yield rates.bytes(f"gather {what}", lambda: pages.gather_pages(keys, values, here, out=staged), moved)
    yield rates.bytes(f"scatter {what}", lambda: pages.scatter_pages(staged, keys, values, there), moved)
    one, other = some[:1], some[1:2]
    yield rates.bytes("copy 1 page", lambda: pages.copy_pages(keys, values, one, other), moved // count)


def samples(rates: Rates) -> Iterator[Line]:
    """A step's last kernels: scores of every token are read at least once."""
    bench, vocabulary = rates.bench, rates.bench.scale.model["vocab_size"]
    sides, cut = Sides(1, vocabulary, bench.device), correct_sampling.cut_of(bench)
    for rows in sorted({1, bench.scale.sampled}):
        logits, lengths = draw(bench, rows, vocabulary, dtype=torch.float32), ints(bench, range(1, rows + 1))
        for what, way in correct_sampling.ways(bench).items():
            bench.check()
            words = correct_sampling.words_of(bench, way, rows)
            yield rates.bytes(
                f"sampling, {rows} rows, {what}",
                lambda: sampling.sample(logits, words, lengths, sides=sides, cut=cut),  # noqa: B023
                logits.nbytes,
            )


def products(rates: Rates) -> Iterator[Line]:
    """Few rows by int8 weights, which are read once."""
    bench, model = rates.bench, rates.bench.scale.model
    weight, scales = quantise(draw(bench, model["intermediate"], model["hidden"], dtype=torch.float32))
    for rows in sorted({1, bench.scale.sampled}):
        bench.check()
        given = draw(bench, rows, model["hidden"])
        out = draw(bench, rows, model["intermediate"])
        what = f"product with int8 weights, {rows} rows"
        yield rates.bytes(what, lambda: int8.int8_linear(given, weight, scales, out=out), weight.nbytes)  # noqa: B023
