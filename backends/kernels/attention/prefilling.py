"""The kernel of prefill: slices of many requests at once, each behind what its pages hold already.

A tile is some positions of one slice with a band of query heads that share a key-value head (all of them, up to 16):
``height // heads`` positions of so many rows each, so that a slice of one row fills a tile as well as its heads can.
The line of tiles has a length that the host knows, ``rows // positions + slices + 1``: slice i begins at tile
``firsts[i] // positions + i``, and the last tiles belong to rows that no slice has; they become zeros.
"""

from __future__ import annotations

import triton
import triton.language as tl

from stepwell.backends.kernels.attention.tiles import absorb, load_tile, pages_of, places

_SLICES = tl.constexpr(256)
"""Slices that are looked at together."""


@triton.jit  # type: ignore[untyped-decorator]
def _slice_of(firsts: tl.tensor, slices: tl.tensor, tile: tl.tensor, positions: tl.tensor) -> tl.tensor:
    """To which slice a tile belongs; ``slices`` itself: to the rows after the last."""
    begun = 0
    for start in range(0, slices + 1, _SLICES):
        index = start + tl.arange(0, _SLICES)
        first = tl.load(firsts + index, mask=index <= slices, other=0)
        begun += tl.sum(((first // positions + index <= tile) & (index <= slices)).to(tl.int32), 0)
    return begun - 1


@triton.jit  # type: ignore[untyped-decorator]
def _run(
    q: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    table: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    least: tl.tensor,
    own: tl.tensor,
    known: tl.tensor,
    window: tl.tensor,
    page_size: tl.tensor,
    page_stride: tl.tensor,
    stride: tl.tensor,
    scale: tl.tensor,
    best: tl.tensor,
    total: tl.tensor,
    mixed: tl.tensor,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    MASKED: tl.constexpr,
) -> tl.tensor:
    """Goes on with blocks ``first`` … ``last - 1``; rows are at the positions ``own``, and none sees what is before
    ``least``.  Not ``MASKED``: every row sees all of them.  Each block's pages are looked up while the one before is
    worked on, a position at a time whatever the page size, as there is enough to compute to hide it."""
    page = pages_of(table, first * BLOCK, known, page_size, BLOCK, False)
    for block in range(first, last):
        place = places(page, block * BLOCK, page_size, page_stride, stride, BLOCK, False)
        page = pages_of(table, (block + 1) * BLOCK, known, page_size, BLOCK, False)
        position = block * BLOCK + tl.arange(0, BLOCK)
        inside = (position < known) & (position >= least)
        key = load_tile(keys, place, inside, DIM, WIDTH)
        scores = tl.dot(q, tl.trans(key), input_precision="tf32x3") * scale
        if MASKED:
            seen = (position[None, :] <= own[:, None]) & inside[None, :]
            seen = seen & ((window == 0) | (position[None, :] > own[:, None] - window))
            scores = tl.where(seen, scores, float("-inf"))
        value = load_tile(values, place, inside, DIM, WIDTH)
        best, total, mixed = absorb(scores, value, best, total, mixed)
    return best, total, mixed


@triton.jit(do_not_specialize=["rows", "slices", "kv_heads", "group", "page_size", "window", "table_row"])  # type: ignore[untyped-decorator]
def prefill_tiles(
    query: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    tables: tl.tensor,
    firsts: tl.tensor,
    starts: tl.tensor,
    out: tl.tensor,
    query_row: tl.tensor,
    query_head: tl.tensor,
    page_stride: tl.tensor,
    position_stride: tl.tensor,
    head_stride: tl.tensor,
    table_row: tl.tensor,
    out_row: tl.tensor,
    out_head: tl.tensor,
    rows: tl.tensor,
    slices: tl.tensor,
    kv_heads: tl.tensor,
    group: tl.tensor,
    page_size: tl.tensor,
    window: tl.tensor,
    scale: tl.tensor,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    HEIGHT: tl.constexpr,
    BLOCK: tl.constexpr,
    BAND: tl.constexpr,
) -> None:
    """One tile of one band.  The last tiles of a slice see most, so they begin first."""
    shared = (group + BAND - 1) // BAND
    band = tl.program_id(0) % (kv_heads * shared)
    heads = tl.minimum(group, BAND)
    positions = HEIGHT // heads
    tile = rows // positions + slices - tl.program_id(0) // (kv_heads * shared)
    at = _slice_of(firsts, slices, tile, positions)
    first = tl.load(firsts + at)
    end = tl.load(firsts + at + 1, mask=at < slices, other=rows)
    start = tl.load(starts + at, mask=at < slices, other=0)
    offset = (tile - (first // positions + at)) * positions
    lane = tl.arange(0, HEIGHT)
    dims = tl.arange(0, WIDTH)
    step = offset + lane // heads
    head, member = band // shared, band % shared * BAND + lane % heads
    cell = (head * group + member)[:, None]
    mine = ((lane < positions * heads) & (step < end - first) & (member < group))[:, None] & (dims < DIM)[None, :]
    row = (first + step).to(tl.int64)[:, None]
    q = tl.load(query + row * query_row + cell * query_head + dims[None, :], mask=mine, other=0.0)
    known = tl.where((at < slices) & (offset < end - first), start + tl.minimum(offset + positions, end - first), 0)
    least = tl.where(window > 0, tl.maximum(start + offset + 1 - window, 0), 0)
    low = least // BLOCK
    blocks = (known + BLOCK - 1) // BLOCK
    # blocks that every row sees whole; with a window there are none that are sure to be
    clear = tl.where(window > 0, low, tl.minimum((start + offset + 1) // BLOCK, blocks))
    best = tl.full([HEIGHT], float("-inf"), tl.float32)
    total = tl.full([HEIGHT], 0.0, tl.float32)
    mixed = tl.full([HEIGHT, WIDTH], 0.0, tl.float32)
    own = start + step
    keys, values = keys + head * head_stride, values + head * head_stride
    tables += at.to(tl.int64) * table_row
    best, total, mixed = _run(
        q, keys, values, tables, low, clear, least, own, known, window, page_size, page_stride, position_stride,
        scale, best, total, mixed, DIM, WIDTH, BLOCK, False,
    )  # fmt: skip
    best, total, mixed = _run(
        q, keys, values, tables, clear, blocks, least, own, known, window, page_size, page_stride, position_stride,
        scale, best, total, mixed, DIM, WIDTH, BLOCK, True,
    )  # fmt: skip
    mean = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(out + row * out_row + cell * out_head + dims[None, :], mean.to(out.dtype.element_ty), mask=mine)
