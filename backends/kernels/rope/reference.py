"""Rotary positions (Su et al. 2021, halves as in Llama's weights), and keys and values put into their slots."""

from __future__ import annotations

import torch
from torch import Tensor


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
    """Turn the queries and keys of ``qkv`` [rows, heads + 2 × kv heads, dim], write keys and values to ``slots``.

    ``positions`` [rows] int32, ``frequencies`` [dim / 2] float32 (angle per position), ``slots`` [rows] int64
    (page × page size + offset); a layer's ``keys`` and ``values`` [pages + 1, page size, kv heads, dim].  Returns the
    queries [rows, heads, dim].  Angles and products are float32; only results are rounded.
    """
    dim, kv_heads, size = qkv.shape[2], keys.shape[2], keys.shape[1]
    turning = heads + kv_heads
    angles = positions[:, None, None].float() * frequencies
    cos, sin = angles.cos(), angles.sin()
    first, second = qkv[:, :turning, : dim // 2].float(), qkv[:, :turning, dim // 2 :].float()
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(qkv.dtype)
    pages, offsets = slots // size, slots % size
    keys[pages, offsets] = turned[:, heads:]
    values[pages, offsets] = qkv[:, turning:]
    query = turned[:, :heads]
    return query.contiguous() if out is None else out.copy_(query)
