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
    requests, pages = tables.shape
    return cache.index_select(0, tables.flatten()).view(requests, pages * cache.shape[1], *cache.shape[2:])


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


def paged_decode(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    tables: Tensor,
    lengths: Tensor,
    *,
    window: int = 0,
    longest: int = 0,
    out: Tensor | None = None,
) -> Tensor:
    """One query for each row, as the truth has it: in float32, with nothing but what a row may see.

    Positions ``0 … lengths[row] - 1`` lie in the pages ``tables[row]`` [rows, width], of which those that no position
    needs may be any that exist.  ``window`` above 0: only the last so many positions are seen.  A row of length 0 gets
    zeros.  ``longest``: a bound of the lengths that the host knows, 0: the table's width.  The host waits for nothing.
    """
    rows, heads, dim = query.shape
    page_size = keys.shape[1]
    if longest:
        tables = tables[:, : -(-longest // page_size)]
    position = torch.arange(tables.shape[1] * page_size, device=query.device)
    seen = _seen(position, lengths - 1, window)
    key = _gathered(keys, tables).float().masked_fill_(~seen[:, :, None, None], 0.0)
    value = _gathered(values, tables).float().masked_fill_(~seen[:, :, None, None], 0.0)
    grouped = query.float().view(rows, keys.shape[2], heads // keys.shape[2], dim)
    scores = torch.einsum("rhgd,rphd->rhgp", grouped, key) * dim**-0.5
    mixed = torch.einsum("rhgp,rphd->rhgd", _weights(scores, seen[:, None, None]), value)
    return _delivered(mixed.reshape(rows, heads, dim), query, out)


def paged_prefill(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    tables: Tensor,
    firsts: Tensor,
    starts: Tensor,
    *,
    longest_slice: int,
    window: int = 0,
    out: Tensor | None = None,
) -> Tensor:
    """Slices of many requests, as the truth has it: in float32, one slice after another.

    Rows ``firsts[i] … firsts[i + 1] - 1`` are the positions from ``starts[i]`` on of slice i, whose keys and values are
    in its pages ``tables[i]`` already, like those of all earlier positions; each row sees up to its own position, or
    the last ``window`` of those.  Slices may be empty; rows after the last slice get zeros.  ``longest_slice``: a bound
    that the host knows.  The host waits for the device.
    """
    mixed = torch.zeros(query.shape, dtype=torch.float32, device=query.device)
    bounds = firsts.tolist()
    for index, start in enumerate(starts.tolist()):
        first, last = bounds[index], bounds[index + 1]
        known = start + last - first
        if first == last:
            continue
        pages = tables[index : index + 1, : -(-known // keys.shape[1])]
        key, value = (_gathered(cache, pages)[0, :known].float() for cache in (keys, values))
        own = torch.arange(start, known, device=query.device)
        seen = _seen(torch.arange(known, device=query.device), own, window)
        value = value.masked_fill(~seen.any(0)[:, None, None], 0.0)
        grouped = query[first:last].float().view(last - first, keys.shape[2], -1, query.shape[2])
        scores = torch.einsum("rhgd,phd->rhgp", grouped, key) * query.shape[2] ** -0.5
        mixed[first:last] = torch.einsum("rhgp,phd->rhgd", _weights(scores, seen[:, None, None]), value).flatten(1, 2)
    return _delivered(mixed, query, out)


def _seen(position: Tensor, own: Tensor, window: int) -> Tensor:
    """Which of the positions a row sees that is at its ``own``: [rows, positions]."""
    seen = position <= own[:, None]
    return seen & (position > own[:, None] - window) if window else seen


def _weights(scores: Tensor, seen: Tensor) -> Tensor:
    """Softmax over what is seen; zeros where nothing is."""
    scores = scores.masked_fill(~seen, -torch.inf)
    return scores.softmax(-1).masked_fill(~seen, 0.0)


def _delivered(mixed: Tensor, query: Tensor, out: Tensor | None) -> Tensor:
    return mixed.to(query.dtype) if out is None else out.copy_(mixed)
