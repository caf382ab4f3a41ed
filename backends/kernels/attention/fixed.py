"""Attention whose every number is independent of company, chunking and page size: the reference, at a fixed shape.

Queries come in tiles of a fixed height and keys in chunks of a fixed length, always from position 0 on, padded and
masked; so each product and each sum has one shape and one order, however a request was cut up.  A chunk that is wholly
masked for a row changes nothing of it, to the last bit: its weights are exp(-inf) = 0 and the old sum is multiplied by
exp(0) = 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK = 128
"""Positions of keys that are taken together."""


def tile(query: Tensor, keys: Tensor, values: Tensor, slots: Tensor, positions: Tensor) -> Tensor:
    """A tile of queries [height, heads, dim] at their ``positions`` [height].

    ``keys`` and ``values`` are flat: [slots, kv heads, dim].  ``slots`` says where positions 0, 1, … of each row lie:
    [height, n × CHUNK], or [1, n × CHUNK] if all rows are of one request; padded with any slot that exists.
    """
    height, heads, dim = query.shape
    kv_heads = keys.shape[1]
    batch, groups = height * kv_heads, heads // kv_heads
    scaled = (query * dim**-0.5).reshape(batch, groups, dim)
    best = torch.full((batch, groups, 1), -torch.inf, dtype=query.dtype, device=query.device)
    total = torch.zeros_like(best)
    mixed = torch.zeros((batch, groups, dim), dtype=query.dtype, device=query.device)
    for first in range(0, slots.shape[1], CHUNK):
        where = slots[:, first : first + CHUNK]
        key, value = _chunk(keys, where, height), _chunk(values, where, height)
        beyond = torch.arange(first, first + CHUNK, device=query.device) > positions[:, None]
        masked = beyond[:, None, None].expand(height, kv_heads, groups, CHUNK).reshape(batch, groups, CHUNK)
        scores = torch.bmm(scaled, key.transpose(1, 2)).masked_fill(masked, -torch.inf)
        highest = torch.maximum(best, scores.amax(-1, keepdim=True))
        weights = (scores - highest).exp()
        fade = (best - highest).exp()
        total = total * fade + weights.sum(-1, keepdim=True)
        mixed = mixed * fade + torch.bmm(weights, value)
        best = highest
    return (mixed / total).view(height, heads, dim)


def _chunk(cache: Tensor, where: Tensor, height: int) -> Tensor:
    """Keys (or values) of a chunk for every row of the tile: [height × kv heads, CHUNK, dim], always laid out alike."""
    kv_heads, dim = cache.shape[1:]
    found = cache.index_select(0, where.flatten()).view(-1, CHUNK, kv_heads, dim).transpose(1, 2).contiguous()
    return found.expand(height, -1, -1, -1).reshape(height * kv_heads, CHUNK, dim)
