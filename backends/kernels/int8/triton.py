"""Weights in 8 bits times few rows: the weight is read once, half the bytes of bfloat16, and widened on the chip.

A program takes all rows (16 at least, which the matrix unit wants) and ``n`` rows of the weight, and walks along k;
sums are in float32 and scales come last.  For more than ``FEW`` rows widening would be repeated, so torch multiplies.
"""

from __future__ import annotations

import msgspec
import torch
import triton
import triton.language as tl
from torch import Tensor

from stepwell.backends.kernels.ahead import Variant
from stepwell.backends.kernels.int8 import reference
from stepwell.backends.kernels.interpreted import mend

if triton.knobs.runtime.interpret:
    mend()

FEW = 64
"""Rows up to which the weight's bytes are what takes the time."""


class Tile(msgspec.Struct, frozen=True):
    """Rows, rows of the weight, and numbers of each, that a program multiplies at once."""

    m: int
    n: int
    k: int
    warps: int = 4
    stages: int = 4


TILES = (Tile(16, 16, 256), Tile(16, 32, 256), Tile(32, 32, 128), Tile(64, 64, 128))
"""Narrow ones for small weights, so that there are programs enough to keep the memory busy."""
_NARROW = 8192
"""Rows of a weight up to which 16 at a time make enough programs."""


def tile_of(m: int, n: int) -> Tile:
    """By the numbers of rows alone."""
    if m <= 16:
        return TILES[0] if n <= _NARROW else TILES[1]
    return TILES[2] if m <= 32 else TILES[3]


@triton.jit
def _int8_linear(
    rows, weight, scales, out, m, n, k, row_stride, weight_stride, out_stride,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    row, column, along = tl.arange(0, M), tl.program_id(0) * N + tl.arange(0, N), tl.arange(0, K)
    left = rows + row[:, None] * row_stride + along[None, :]
    right = weight + column[None, :].to(tl.int64) * weight_stride + along[:, None]
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, k, K):
        inside = along < k - start
        here = tl.load(left + start, mask=(row < m)[:, None] & inside[None, :], other=0.0)
        there = tl.load(right + start, mask=(column < n)[None, :] & inside[:, None], other=0)
        # Through float32, as the interpreter makes no bfloat16 of an integer; both ways are exact.
        wide = there.to(tl.float32).to(here.dtype)
        total = tl.dot(here, wide, total, input_precision="ieee" if EXACT else "tf32")
    total = total * tl.load(scales + column, mask=column < n, other=0.0)[None, :]
    at = out + row[:, None] * out_stride + column[None, :]
    tl.store(at, total.to(out.dtype.element_ty), mask=(row < m)[:, None] & (column < n)[None, :])


def int8_linear(rows: Tensor, weight: Tensor, scales: Tensor, *, out: Tensor | None = None) -> Tensor:
    """As ``reference.int8_linear``, which also takes what has more than ``FEW`` rows."""
    m, k = rows.shape
    n = weight.shape[0]
    if m > FEW:
        return reference.int8_linear(rows, weight, scales, out=out)
    out = rows.new_empty((m, n)) if out is None else out
    if not m or not n:
        return out
    tile = tile_of(m, n)
    _int8_linear[(triton.cdiv(n, tile.n),)](
        *(rows, weight, scales, out, m, n, k, rows.stride(0), weight.stride(0), out.stride(0)),
        M=tile.m,
        N=tile.n,
        K=tile.k,
        EXACT=rows.dtype == torch.float32,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return out


def variants() -> list[Variant]:
    """Every tile in bf16; fp16 makes the same code but for the type, so one of it."""
    numbers = dict.fromkeys(("m", "n", "k", "row_stride", "weight_stride", "out_stride"), "i32")
    return [
        Variant(
            kernel=_int8_linear,
            signature={"rows": f"*{dtype}", "weight": "*i8", "scales": "*fp32", "out": f"*{dtype}", **numbers},
            constants={"M": tile.m, "N": tile.n, "K": tile.k, "EXACT": False},
            num_warps=tile.warps,
            num_stages=tile.stages,
            label=f"{dtype}, {tile.m} × {tile.n} × {tile.k}",
            divisible=("n", "k", "row_stride", "weight_stride", "out_stride"),
        )
        for dtype, tile in [*(("bf16", tile) for tile in TILES), ("fp16", TILES[0])]
    ]
