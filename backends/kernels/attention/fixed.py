"""Attention whose every number is independent of company, chunking and page size: the reference, at a fixed shape.

Queries come in tiles of a fixed height and keys in chunks of a fixed length, always from position 0 on, padded and
masked; so each product and each sum has one shape and one order, however a request was cut up.  A chunk that is wholly
masked for a row changes nothing of it, to the last bit: its weights are exp(-inf) = 0 and the old sum is multiplied by
exp(0) = 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

CHUNK = 128
"""Positions of keys that are taken together."""

Chunk = tuple[Tensor, Tensor | None]
"""Slots of consecutive positions, [height, CHUNK] or [1, CHUNK] if all rows are of one request; and which of them lie
beyond each row, [height, 1, CHUNK], or None if none do."""


def chunks(slots: Tensor, positions: Tensor) -> list[Chunk]:
    """Of a tile whose rows are at ``positions`` [height]; ``slots`` says where positions 0, 1, … of each row lie:
    [height or 1, n × CHUNK], padded with any slot that exists."""
    made: list[Chunk] = []
    for first in range(0, slots.shape[1], CHUNK):
        beyond = torch.arange(first, first + CHUNK, device=positions.device) > positions[:, None]
        made.append((slots[:, first : first + CHUNK], beyond[:, None] if bool(beyond.any()) else None))
    return made


def tile(query: Tensor, keys: Tensor, values: Tensor, chunks: Sequence[Chunk]) -> Tensor:
    """A tile of queries [height, heads, dim].  ``keys`` and ``values`` are flat: [slots, kv heads, dim].

    Inside, key-value heads come first: [kv heads, height, query heads of each, …].
    """
    height, heads, dim = query.shape
    kv_heads = keys.shape[1]
    groups = heads // kv_heads
    scaled = (query * dim**-0.5).view(height, kv_heads, groups, dim).transpose(0, 1).contiguous()
    best = scaled.new_full((kv_heads, height, groups, 1), -torch.inf)
    total, mixed = torch.zeros_like(best), torch.zeros_like(scaled)
    for slots, beyond in chunks:
        key, value = _chunk(keys, slots, height), _chunk(values, slots, height)
        scores = _products(scaled, key.transpose(2, 3))
        if beyond is not None:
            scores.masked_fill_(beyond, -torch.inf)
        highest = torch.maximum(best, scores.amax(-1, keepdim=True))
        weights = scores.sub_(highest).exp_()
        fade = (best - highest).exp_()
        total.mul_(fade).add_(weights.sum(-1, keepdim=True))
        mixed.mul_(fade).add_(_products(weights, value))
        best = highest
    return (mixed / total).transpose(0, 1).reshape(height, heads, dim)


def _chunk(cache: Tensor, slots: Tensor, height: int) -> Tensor:
    """Keys (or values) of a chunk for every row of the tile: [kv heads, height, CHUNK, dim].  Those of one request are
    not repeated in memory."""
    found = cache.index_select(0, slots.flatten()).view(-1, CHUNK, *cache.shape[1:])
    return found.permute(2, 0, 1, 3).expand(-1, height, -1, -1)


def _products(left: Tensor, right: Tensor) -> Tensor:
    """Of small matrices, one for every key-value head and row."""
    out = left.new_empty((*left.shape[:3], right.shape[3]))
    for head in range(left.shape[0]):
        torch.bmm(left[head], right[head], out=out[head])
    return out
