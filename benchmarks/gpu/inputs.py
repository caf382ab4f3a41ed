"""Inputs of the kernels, drawn on the device, as a server would have them: pages in no order, lengths all different."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stepwell.benchmarks.gpu.bench import Bench


@dataclass(frozen=True)
class Heads:
    """Query heads, key-value heads, numbers of a head, positions of a page."""

    query: int
    kv: int
    dim: int
    page_size: int


@dataclass(frozen=True)
class Paged:
    """A layer's cache [pages + 1, page size, kv heads, dim], and whose pages are where: [rows, width] int32."""

    keys: Tensor
    values: Tensor
    tables: Tensor
    lengths: list[int]


def heads_of(bench: Bench) -> Heads:
    model = bench.scale.model
    return Heads(model["heads"], model["kv_heads"], model["head_dim"], bench.scale.page_size)


def paged(bench: Bench, heads: Heads, lengths: Sequence[int], dtype: torch.dtype, *, poisoned: bool = False) -> Paged:
    """``poisoned``: every position that is nobody's, or is still to come, holds not-a-number."""
    size, device = heads.page_size, bench.device
    needed = [-(-length // size) for length in lengths]
    pages = sum(needed)
    room = (pages + 1, size, heads.kv, heads.dim)
    keys, values = (torch.randn(room, dtype=dtype, device=device) for _ in range(2))
    order = torch.randperm(pages).to(torch.int32)
    tables = torch.full((len(lengths), max([*needed, 1])), pages, dtype=torch.int32)
    at = 0
    for row, (count, length) in enumerate(zip(needed, lengths, strict=True)):
        tables[row, :count] = order[at : at + count]
        at += count
        if poisoned and count and length % size:
            for cache in (keys, values):
                cache[int(tables[row, count - 1]), length % size :] = torch.nan
    if poisoned:
        keys[-1], values[-1] = torch.nan, torch.nan
    return Paged(keys, values, tables.to(device), list(lengths))


def ragged(rows: int, longest: int) -> list[int]:
    """Lengths from 1 up to ``longest``, all over that range, the longest last."""
    return [max(1, longest * (1 + row * 7 % rows) // rows) for row in range(rows)]


def draw(bench: Bench, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
    return torch.randn(shape, dtype=dtype or bench.dtype, device=bench.device)


def ints(bench: Bench, values: Sequence[int], dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.tensor(list(values), dtype=dtype, device=bench.device)
