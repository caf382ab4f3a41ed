"""Residual sum and root mean square norm in one pass: a program takes a whole row, so its states are read once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stepwell.backends.kernels.ahead import Variant
from stepwell.core.errors import UserError

BLOCKS = (1024, 2048, 4096, 8192, 16_384)
"""Numbers of a program: the least that holds a row."""
WIDEST = BLOCKS[-1]
"""A row must fit the registers of one program."""


def warps_of(block: int) -> int:
    """At most 32 numbers a thread."""
    return min(max(block // 512, 1), 16)


@triton.jit
def _add_norm(
    states,
    added,
    weight,
    out,
    hidden,
    eps,
    states_stride,
    added_stride,
    out_stride,
    ADDED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < hidden
    here = states + row * states_stride + column
    state = tl.load(here, mask=inside, other=0.0)
    if ADDED:
        state += tl.load(added + row * added_stride + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(here, state, mask=inside)
    scale = tl.rsqrt(tl.sum(state * state, 0) / hidden + eps)
    normed = state * scale * tl.load(weight + column, mask=inside, other=0.0)
    tl.store(out + row * out_stride + column, normed.to(out.dtype.element_ty), mask=inside)


def add_norm(
    states: Tensor, added: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype, *, out: Tensor | None = None
) -> Tensor:
    """As ``reference.add_norm``.  Raises ``UserError`` for rows of more than ``WIDEST``."""
    rows, hidden = states.shape
    if hidden > WIDEST:
        raise UserError(f"a norm over {hidden} numbers; at most {WIDEST} fit a program")
    out = torch.empty((rows, hidden), dtype=dtype, device=states.device) if out is None else out
    block = next(each for each in BLOCKS if hidden <= each)
    if rows:
        _add_norm[(rows,)](
            states,
            states if added is None else added,
            weight,
            out,
            hidden,
            eps,
            states.stride(0),
            0 if added is None else added.stride(0),
            out.stride(0),
            ADDED=added is not None,
            BLOCK=block,
            num_warps=warps_of(block),
        )
    return out


def variants() -> list[Variant]:
    """Every width, with something to add and without, and in every dtype."""
    found = [_variant("bf16", block, added) for block in BLOCKS for added in (True, False)]
    return [*found, *(_variant(dtype, 4096, True) for dtype in ("fp16", "fp32"))]


def _variant(dtype: str, block: int, added: bool) -> Variant:
    strides = ("states_stride", "added_stride", "out_stride")
    pointers = {"states": "*fp32", "added": f"*{dtype}" if added else "*fp32", "weight": "*fp32", "out": f"*{dtype}"}
    return Variant(
        kernel=_add_norm,
        signature={**pointers, "hidden": "i32", "eps": "fp32", **dict.fromkeys(strides, "i32")},
        constants={"ADDED": added, "BLOCK": block},
        num_warps=warps_of(block),
        label=f"{dtype}, {block} wide" + ("" if added else ", nothing added"),
        divisible=("hidden", *strides),
    )
