"""The kernels of decode: all blocks of all requests in one line, cut into equal shares, one for each program.

A *band* is up to 16 query heads that share one key-value head; it reads that head once for all of them.  A *block* is
some positions of a band.  Blocks are numbered request by request, band by band, so every program computes where its
share begins from the lengths alone: no list is made on the host, lengths may change under a recorded graph, and one
long request is spread over the device as well as many short ones (the idea of stream-K, Osama and others 2023, and of
Lean Attention, Sanovar and others 2024; partial results as in Flash-Decoding, Dao and others 2023).

A band that lies in one share is written to ``out``.  Otherwise each program leaves its part: a program may begin in the
middle of one band and end in the middle of another, so it has two places.  A second kernel adds the parts up.
"""

from __future__ import annotations

import triton
import triton.language as tl

from stepwell.backends.kernels.attention.tiles import absorb, load_tile, pages_of, places

_LENGTHS = tl.constexpr(256)
"""Lengths that are looked at together."""


@triton.jit  # type: ignore[untyped-decorator]
def _span(length: tl.tensor, window: tl.tensor, BLOCK: tl.constexpr) -> tl.tensor:
    """The first position that is seen (a window of 0 sees all), and how many blocks there are from its block on."""
    low = tl.where(window > 0, tl.maximum(length - window, 0), 0)
    return low, (length + BLOCK - 1) // BLOCK - low // BLOCK


@triton.jit  # type: ignore[untyped-decorator]
def _blocks(lengths: tl.tensor, rows: tl.tensor, window: tl.tensor, BLOCK: tl.constexpr) -> tl.tensor:
    """Blocks of one band of all rows together."""
    total = 0
    for start in range(0, rows, _LENGTHS):
        index = start + tl.arange(0, _LENGTHS)
        _, count = _span(tl.load(lengths + index, mask=index < rows, other=0), window, BLOCK)
        total += tl.sum(count, 0)
    return total


@triton.jit  # type: ignore[untyped-decorator]
def _row_of(lengths: tl.tensor, rows: tl.tensor, block: tl.tensor, window: tl.tensor, BLOCK: tl.constexpr) -> tl.tensor:
    """In which row a block lies, if each had one band, and the blocks before that row."""
    row = 0
    before = 0
    known = 0
    for start in range(0, rows, _LENGTHS):
        index = start + tl.arange(0, _LENGTHS)
        _, count = _span(tl.load(lengths + index, mask=index < rows, other=0), window, BLOCK)
        passed = (known + tl.cumsum(count, 0) <= block) & (index < rows)
        row += tl.sum(passed.to(tl.int32), 0)
        before += tl.sum(tl.where(passed, count, 0), 0)
        known += tl.sum(count, 0)
    return row, before


@triton.jit  # type: ignore[untyped-decorator]
def _begin(lengths: tl.tensor, rows: tl.tensor, bands: tl.tensor, window: tl.tensor, BLOCK: tl.constexpr) -> tl.tensor:
    """Of this program: how many blocks make a share, its first block and the one after its last; the row of the first,
    and the blocks of one band of all rows before that."""
    blocks = _blocks(lengths, rows, window, BLOCK) * bands
    share = tl.maximum((blocks + tl.num_programs(0) - 1) // tl.num_programs(0), 1)
    unit = tl.program_id(0) * share
    row, before = _row_of(lengths, rows, unit // bands, window, BLOCK)
    return share, unit, tl.minimum(unit + share, blocks), row, before


@triton.jit  # type: ignore[untyped-decorator]
def _mix(
    q: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    table: tl.tensor,
    first: tl.tensor,
    count: tl.tensor,
    low: tl.tensor,
    known: tl.tensor,
    page_size: tl.tensor,
    page_stride: tl.tensor,
    stride: tl.tensor,
    scale: tl.tensor,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
    BAND: tl.constexpr,
) -> tl.tensor:
    """What a band sees in ``count`` blocks from ``first`` on: the highest score, the sum of weights, the sum of values.
    Each block's pages are looked up while the one before is worked on."""
    best = tl.full([BAND], float("-inf"), tl.float32)
    total = tl.full([BAND], 0.0, tl.float32)
    mixed = tl.full([BAND, WIDTH], 0.0, tl.float32)
    page = pages_of(table, first * BLOCK, known, page_size, BLOCK, WHOLE)
    for block in range(first, first + count):
        place = places(page, block * BLOCK, page_size, page_stride, stride, BLOCK, WHOLE)
        page = pages_of(table, (block + 1) * BLOCK, known, page_size, BLOCK, WHOLE)
        position = block * BLOCK + tl.arange(0, BLOCK)
        inside = (position < known) & (position >= low)
        key = load_tile(keys, place, inside, DIM, WIDTH)
        scores = tl.dot(q, tl.trans(key), input_precision="tf32x3") * scale
        scores = tl.where(inside[None, :], scores, float("-inf"))
        value = load_tile(values, place, inside, DIM, WIDTH)
        best, total, mixed = absorb(scores, value, best, total, mixed)
    return best, total, mixed


@triton.jit(do_not_specialize=["rows", "kv_heads", "group", "page_size", "window", "table_row"])  # type: ignore[untyped-decorator]
def decode_shares(
    query: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    tables: tl.tensor,
    lengths: tl.tensor,
    out: tl.tensor,
    parts: tl.tensor,
    levels: tl.tensor,
    spread: tl.tensor,
    query_row: tl.tensor,
    query_head: tl.tensor,
    page_stride: tl.tensor,
    position_stride: tl.tensor,
    head_stride: tl.tensor,
    table_row: tl.tensor,
    out_row: tl.tensor,
    out_head: tl.tensor,
    rows: tl.tensor,
    kv_heads: tl.tensor,
    group: tl.tensor,
    page_size: tl.tensor,
    window: tl.tensor,
    scale: tl.tensor,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
    BAND: tl.constexpr,
) -> None:
    """One share.  ``parts`` [2 × programs, BAND, WIDTH]: means of parts of bands; ``levels`` [2 × programs, BAND]: the
    logarithms of the sums of their weights; ``spread`` [rows, bands, 2]: the first and the last program of a band."""
    program = tl.program_id(0)
    tiles = (group + BAND - 1) // BAND
    bands = kv_heads * tiles
    share, unit, end, row, before = _begin(lengths, rows, bands, window, BLOCK)
    lane = tl.arange(0, BAND)
    dims = tl.arange(0, WIDTH)
    while unit < end:
        known = tl.load(lengths + row)
        low, count = _span(known, window, BLOCK)
        at = unit - before * bands
        if at < count * bands:
            band, block = at // count, at % count
            taken = tl.minimum(count - block, end - unit)
            head, member = band // tiles, band % tiles * BAND + lane
            mine = (member < group)[:, None] & (dims < DIM)[None, :]
            cell = (head * group + member)[:, None]
            q = tl.load(query + row.to(tl.int64) * query_row + cell * query_head + dims[None, :], mask=mine, other=0.0)
            best, total, mixed = _mix(
                q, keys + head * head_stride, values + head * head_stride, tables + row.to(tl.int64) * table_row,
                low // BLOCK + block, taken, low, known, page_size, page_stride, position_stride, scale,
                DIM, WIDTH, BLOCK, WHOLE, BAND,
            )  # fmt: skip
            mean = mixed / total[:, None]
            if taken == count:
                to = out + row.to(tl.int64) * out_row + cell * out_head + dims[None, :]
                tl.store(to, mean.to(out.dtype.element_ty), mask=mine)
            else:
                slot = (program * 2 + (block == 0).to(tl.int32)) * BAND + lane
                tl.store(parts + slot[:, None] * WIDTH + dims[None, :], mean)
                tl.store(levels + slot, best + tl.log2(total))
            unit += taken
            if block + taken == count:
                told = spread + (row * bands + band) * 2
                tl.store(told, (before * bands + band * count) // share)
                tl.store(told + 1, program)
        else:
            before += count
            row += 1


@triton.jit(do_not_specialize=["group", "bands"])  # type: ignore[untyped-decorator]
def decode_sum(
    parts: tl.tensor,
    levels: tl.tensor,
    spread: tl.tensor,
    lengths: tl.tensor,
    out: tl.tensor,
    out_row: tl.tensor,
    out_head: tl.tensor,
    group: tl.tensor,
    bands: tl.tensor,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BAND: tl.constexpr,
    PARTS: tl.constexpr,
) -> None:
    """Adds up the parts of one query head of one request, if there are any; who knows no position gets zeros."""
    row = tl.program_id(0)
    cell = tl.program_id(1)
    member = cell % group
    told = spread + (row * bands + cell // group * ((group + BAND - 1) // BAND) + member // BAND) * 2
    some = tl.load(lengths + row) > 0
    first = tl.load(told, mask=some, other=0)
    last = tl.load(told + 1, mask=some, other=-1)
    if (last > first) | (last < 0):
        dims = tl.arange(0, WIDTH)
        best = float("-inf")
        total = 0.0
        mixed = tl.full([WIDTH], 0.0, tl.float32)
        for start in range(first, last + 1, PARTS):
            program = start + tl.arange(0, PARTS)
            # the program in which a band begins has it at the end of its share
            slot = (program * 2 + (program == first).to(tl.int32)) * BAND + member % BAND
            level = tl.load(levels + slot, mask=program <= last, other=float("-inf"))
            part = tl.load(parts + slot[:, None] * WIDTH + dims[None, :], mask=(program <= last)[:, None], other=0.0)
            highest = tl.maximum(best, tl.max(level, 0))
            weight = tl.exp2(level - highest)
            fade = tl.exp2(best - highest)
            total = total * fade + tl.sum(weight, 0)
            mixed = mixed * fade + tl.sum(part * weight[:, None], 0)
            best = highest
        mean = mixed / tl.where(some, total, 1.0)
        to = out + row.to(tl.int64) * out_row + cell * out_head + dims
        tl.store(to, mean.to(out.dtype.element_ty), mask=dims < DIM)
