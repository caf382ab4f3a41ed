"""Residual sum and root mean square norm in one pass: a program takes a whole row, so its states are read once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stepwell.core.errors import UserError

WIDEST = 16_384
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
    block = triton.next_power_of_2(hidden)
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
