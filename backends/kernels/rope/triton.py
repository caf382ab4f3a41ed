"""Rotary positions and the write of keys and values: a program takes a few heads of a row, and reads them once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stepwell.backends.kernels.ahead import Variant
from stepwell.core.errors import UserError

HEADS = 8
"""Heads of a program: few, so that one row alone keeps several multiprocessors busy."""
HALVES = (32, 64, 128)
"""Pairs of a head: the least that holds them."""
WARPS = 4


@triton.jit
def _rotate_and_write(
    qkv,
    positions,
    frequencies,
    slots,
    keys,
    values,
    out,
    heads,
    kv_heads,
    half,
    page_size,
    qkv_row,
    qkv_head,
    key_page,
    key_slot,
    key_head,
    value_page,
    value_slot,
    value_head,
    out_row,
    out_head,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    pair = tl.arange(0, HALF)[None, :]
    turning = heads + kv_heads
    inside = (pair < half) & (head < turning + kv_heads)

    angle = tl.load(positions + row).to(tl.float32) * tl.load(frequencies + pair, mask=pair < half, other=0.0)
    cos, sin = tl.cos(angle), tl.sin(angle)
    here = qkv + row * qkv_row + head * qkv_head + pair
    first = tl.load(here, mask=inside, other=0.0)
    second = tl.load(here + half, mask=inside, other=0.0)
    low, high = first.to(tl.float32), second.to(tl.float32)
    turned_low = (low * cos - high * sin).to(first.dtype)
    turned_high = (high * cos + low * sin).to(first.dtype)

    there = out + row * out_row + head * out_head + pair
    is_query = inside & (head < heads)
    tl.store(there, turned_low, mask=is_query)
    tl.store(there + half, turned_high, mask=is_query)

    slot = tl.load(slots + row)
    page, offset = slot // page_size, slot % page_size
    there = keys + page * key_page + offset * key_slot + (head - heads) * key_head + pair
    is_key = inside & (head >= heads) & (head < turning)
    tl.store(there, turned_low, mask=is_key)
    tl.store(there + half, turned_high, mask=is_key)

    there = values + page * value_page + offset * value_slot + (head - turning) * value_head + pair
    is_value = inside & (head >= turning)
    tl.store(there, first, mask=is_value)
    tl.store(there + half, second, mask=is_value)


def rotate_and_write(
    qkv: Tensor,
    positions: Tensor,
    frequencies: Tensor,
    slots: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    heads: int,
    out: Tensor | None = None,
) -> Tensor:
    """As ``reference.rotate_and_write``."""
    rows, every, dim = qkv.shape
    out = torch.empty((rows, heads, dim), dtype=qkv.dtype, device=qkv.device) if out is None else out
    if rows:
        _rotate_and_write[(rows, triton.cdiv(every, HEADS))](
            qkv,
            positions,
            frequencies,
            slots,
            keys,
            values,
            out,
            heads,
            keys.shape[2],
            dim // 2,
            keys.shape[1],
            *qkv.stride()[:2],
            *keys.stride()[:3],
            *values.stride()[:3],
            *out.stride()[:2],
            HEADS=HEADS,
            HALF=_half(dim),
            num_warps=WARPS,
        )
    return out


def _half(dim: int) -> int:
    """Raises ``UserError`` for heads that are larger than any."""
    found = next((each for each in HALVES if dim <= 2 * each), 0)
    if not found:
        raise UserError(f"heads of {dim} dimensions; the kernels take up to {2 * HALVES[-1]}")
    return found


_WHY_STACK = "the sine of angles beyond 105,615 is reduced in memory; of those below nothing is"


def variants() -> list[Variant]:
    """Every size of heads, and every dtype."""
    pairs = [*(("bf16", half) for half in HALVES), ("fp16", 64), ("fp32", 64)]
    return [_variant(dtype, half) for dtype, half in pairs]


def _variant(dtype: str, half: int) -> Variant:
    data = dict.fromkeys(("qkv", "keys", "values", "out"), f"*{dtype}")
    index = {"positions": "*i32", "frequencies": "*fp32", "slots": "*i64"}
    counts = ("heads", "kv_heads", "half", "page_size")
    strides = [f"{whose}_{axis}" for whose in ("key", "value") for axis in ("page", "slot", "head")]
    strides += [f"{whose}_{axis}" for whose in ("qkv", "out") for axis in ("row", "head")]
    return Variant(
        kernel=_rotate_and_write,
        signature={**data, **index, **dict.fromkeys((*counts, *strides), "i32")},
        constants={"HEADS": HEADS, "HALF": half},
        num_warps=WARPS,
        label=f"{dtype}, {2 * half} dimensions",
        divisible=("half", "page_size", *strides),
        why_spills=_WHY_STACK,
    )
