"""The gate of a feed-forward layer: both halves of a row are read once, the product written once."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from stepwell.backends.kernels.ahead import Variant

BLOCK = 1024
"""Columns of a program: 8 numbers of each half a thread, two wide loads in bfloat16."""
WARPS = 4


@triton.jit
def _swiglu(
    gate_up,
    out,
    inner,
    gate_up_stride,
    out_stride,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < inner
    here = gate_up + row * gate_up_stride + column
    gate = tl.load(here, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(here + inner, mask=inside, other=0.0).to(tl.float32)
    # e to the power of -|gate| and never of |gate|, which may be too large a number.
    small = tl.exp(-tl.abs(gate))
    gated = gate * tl.where(gate < 0, small, 1.0) / (1.0 + small) * up
    tl.store(out + row * out_stride + column, gated.to(out.dtype.element_ty), mask=inside)


def swiglu(gate_up: Tensor, *, out: Tensor | None = None) -> Tensor:
    """As ``reference.swiglu``."""
    rows, inner = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty((rows, inner)) if out is None else out
    if rows:
        _swiglu[(rows, triton.cdiv(inner, BLOCK))](
            gate_up, out, inner, gate_up.stride(0), out.stride(0), BLOCK=BLOCK, num_warps=WARPS
        )
    return out


def variants() -> list[Variant]:
    """Every dtype."""
    return [_variant(dtype) for dtype in ("bf16", "fp16", "fp32")]


def _variant(dtype: str) -> Variant:
    counts = ("inner", "gate_up_stride", "out_stride")
    return Variant(
        kernel=_swiglu,
        signature={"gate_up": f"*{dtype}", "out": f"*{dtype}", **dict.fromkeys(counts, "i32")},
        constants={"BLOCK": BLOCK},
        num_warps=WARPS,
        label=dtype,
        divisible=counts,
    )
