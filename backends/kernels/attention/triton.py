"""Attention over paged keys and values by Triton, for a GPU: the launchers, of the same face as in ``reference``.

Nothing here waits for the device, and grids follow from what the host knows, so all of it may be recorded in a CUDA
graph: memory for partial results is taken from torch, which keeps it with the graph.
"""

from __future__ import annotations

import math

import torch
import triton
from torch import Tensor

from stepwell.backends.kernels.attention import tuning
from stepwell.backends.kernels.attention.decoding import decode_shares, decode_sum
from stepwell.backends.kernels.attention.prefilling import prefill_tiles
from stepwell.backends.kernels.interpreted import mend
from stepwell.core.errors import InvariantError, UserError

if triton.knobs.runtime.interpret:
    mend()

_PARTS = 16
"""Parts of a band that are added up together."""
_SUM_WARPS = 2


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
    """See ``reference.paged_decode``."""
    rows, _, dim = query.shape
    kv_heads, group = _checked(query, keys, values)
    tuned = tuning.decode_tuning(keys.element_size(), dim)
    bound = longest or tables.shape[1] * keys.shape[1]
    programs = tuning.decode_programs(tuned, _processors(query.device), rows, kv_heads, group, bound)
    return decode_by(programs, query, keys, values, tables, lengths, window=window, out=out)


def decode_by(
    programs: int,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    tables: Tensor,
    lengths: Tensor,
    *,
    window: int = 0,
    out: Tensor | None = None,
) -> Tensor:
    """Decode by a given number of programs, at least 1, each of which takes an equal share of the work."""
    rows, heads, dim = query.shape
    kv_heads, group = _checked(query, keys, values)
    tuned, width = tuning.decode_tuning(keys.element_size(), dim), tuning.width_of(dim)
    out = torch.empty((rows, heads, dim), dtype=query.dtype, device=query.device) if out is None else out
    if not rows:
        return out
    bands, page_size = kv_heads * -(-group // tuning.BAND), keys.shape[1]
    parts = torch.empty((2 * programs, tuning.BAND, width), dtype=torch.float32, device=query.device)
    levels = torch.empty((2 * programs, tuning.BAND), dtype=torch.float32, device=query.device)
    spread = torch.empty((rows, bands, 2), dtype=torch.int32, device=query.device)
    decode_shares[(programs,)](
        query, keys, values, tables, lengths, out, parts, levels, spread,
        *query.stride()[:2], *keys.stride()[:3], tables.stride(0), *out.stride()[:2],
        rows, kv_heads, group, page_size, window, _scale(dim),
        DIM=dim, WIDTH=width, BLOCK=tuned.block, WHOLE=page_size % tuned.block == 0, BAND=tuning.BAND,
        num_warps=tuned.warps, num_stages=tuned.stages,
    )  # fmt: skip
    decode_sum[(rows, heads)](
        parts, levels, spread, lengths, out, *out.stride()[:2], group, bands,
        DIM=dim, WIDTH=width, BAND=tuning.BAND, PARTS=_PARTS, num_warps=_SUM_WARPS,
    )  # fmt: skip
    return out


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
    """See ``reference.paged_prefill``.  ``longest_slice`` chooses the height of tiles; a slice may be longer."""
    rows, heads, dim = query.shape
    kv_heads, group = _checked(query, keys, values)
    tuned = tuning.prefill_tuning(keys.element_size(), dim, group, longest_slice)
    out = torch.empty((rows, heads, dim), dtype=query.dtype, device=query.device) if out is None else out
    if not rows:
        return out
    slices, page_size = tables.shape[0], keys.shape[1]
    tiles = rows // (tuned.height // group) + slices + 1
    prefill_tiles[(tiles * kv_heads,)](
        query, keys, values, tables, firsts, starts, out,
        *query.stride()[:2], *keys.stride()[:3], tables.stride(0), *out.stride()[:2],
        rows, slices, kv_heads, group, page_size, window, _scale(dim),
        DIM=dim, WIDTH=tuning.width_of(dim), HEIGHT=tuned.height, BLOCK=tuned.block,
        WHOLE=page_size % tuned.block == 0, num_warps=tuned.warps, num_stages=tuned.stages,
    )  # fmt: skip
    return out


def _checked(query: Tensor, keys: Tensor, values: Tensor) -> tuple[int, int]:
    """Key-value heads, and query heads that share one."""
    heads, dim = query.shape[1:]
    kv_heads = keys.shape[2]
    group = heads // kv_heads
    if group * kv_heads != heads or group > tuning.MAX_GROUP:
        raise UserError(
            f"{heads} query heads to {kv_heads} key-value heads; the kernels take multiples up to {tuning.MAX_GROUP}"
        )
    if dim > tuning.MAX_DIM:
        raise UserError(f"heads of {dim} dimensions; the kernels take up to {tuning.MAX_DIM}")
    if keys.shape != values.shape or keys.stride() != values.stride():
        raise InvariantError("keys and values must lie alike in memory")
    return kv_heads, group


def _scale(dim: int) -> float:
    """Of scores: powers are of 2, which a GPU takes faster than those of e."""
    return math.log2(math.e) / math.sqrt(dim)


def _processors(device: torch.device) -> int:
    """Multiprocessors of a GPU; torch keeps what it once asked for.  Elsewhere kernels are only interpreted."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
