"""Attention over paged keys and values in plain torch: gather the pages, then one large operation for all requests.

Shapes: a layer's cache is [pages, page size, kv heads, dim]; queries are [rows, heads, dim], where heads / kv heads
consecutive query heads share one key-value head.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def write(cache: Tensor, slots: Tensor, values: Tensor) -> None:
    """Store one row of keys (or values) in each slot; slot = page × page size + offset."""
    cache.view(-1, *cache.shape[2:]).index_copy_(0, slots, values)


def decode_mask(lengths: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """What is added to the scores of requests that know ``lengths`` positions each: [requests, 1, 1, width]."""
    beyond = torch.arange(width, device=lengths.device) >= lengths[:, None]
    return torch.zeros(beyond.shape, dtype=dtype, device=lengths.device).masked_fill(beyond, -torch.inf)[:, None, None]


def decode(query: Tensor, keys: Tensor, values: Tensor, tables: Tensor, mask: Tensor) -> Tensor:
    """One query for each request.  ``tables`` [requests, pages] is padded with any page that exists."""
    requests, heads, dim = query.shape
    kv_heads = keys.shape[2]
    key = _gathered(keys, tables).transpose(1, 2)
    value = _gathered(values, tables).transpose(1, 2)
    # The query heads of one key-value head take the place of positions, so that nothing is repeated.
    grouped = query.view(requests, kv_heads, heads // kv_heads, dim)
    return F.scaled_dot_product_attention(grouped, key, value, attn_mask=mask).reshape(requests, heads, dim)


def _gathered(cache: Tensor, tables: Tensor) -> Tensor:
    """Pages of each request in order: [requests, positions, kv heads, dim].  (Plain indexing takes 4 times as long.)"""
    return cache.index_select(0, tables.flatten()).view(tables.shape[0], -1, *cache.shape[2:])


def slice_mask(start: int, count: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """For the positions ``start`` … ``start + count - 1`` of one request: [count, width], causal."""
    position = torch.arange(start, start + count, device=device)[:, None]
    beyond = torch.arange(width, device=device) > position
    return torch.zeros(beyond.shape, dtype=dtype, device=device).masked_fill(beyond, -torch.inf)


def prefill(query: Tensor, keys: Tensor, values: Tensor, pages: Tensor, mask: Tensor | None) -> Tensor:
    """Consecutive queries of one request, whose earlier positions may lie in its ``pages`` already.

    Without a mask the first query is that of position 0, which needs about a fifth less time.
    """
    rows, heads, dim = query.shape
    kv_heads = keys.shape[2]
    groups = heads // kv_heads
    # Key-value heads take the place of requests, so that nothing is repeated in memory.
    grouped = query.view(rows, kv_heads, groups, dim).permute(1, 2, 0, 3)
    key = keys.index_select(0, pages).flatten(0, 1).transpose(0, 1)[:, None].expand(-1, groups, -1, -1)
    value = values.index_select(0, pages).flatten(0, 1).transpose(0, 1)[:, None].expand(-1, groups, -1, -1)
    mixed = F.scaled_dot_product_attention(grouped, key, value, attn_mask=mask, is_causal=mask is None)
    return mixed.permute(2, 0, 1, 3).flatten(1, 2)
