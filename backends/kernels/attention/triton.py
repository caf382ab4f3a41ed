"""Attention over paged keys and values by Triton, for a GPU: the launchers, of the same face as in ``reference``.

Nothing here waits for the device, and grids follow from what the host knows, so all of it may be recorded in a CUDA
graph: memory for partial results is taken from torch, which keeps it with the graph.
"""

from __future__ import annotations

import math

import torch
import triton
from torch import Tensor

from stepwell.backends.kernels.ahead import Variant
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
    tiles = rows // (tuned.height // min(group, tuning.BAND)) + slices + 1
    prefill_tiles[(tiles * kv_heads * -(-group // tuning.BAND),)](
        query, keys, values, tables, firsts, starts, out,
        *query.stride()[:2], *keys.stride()[:3], tables.stride(0), *out.stride()[:2],
        rows, slices, kv_heads, group, page_size, window, _scale(dim),
        DIM=dim, WIDTH=tuning.width_of(dim), HEIGHT=tuned.height, BLOCK=tuned.block, BAND=tuning.BAND,
        num_warps=tuned.warps, num_stages=tuned.stages,
    )  # fmt: skip
    return out


def _checked(query: Tensor, keys: Tensor, values: Tensor) -> tuple[int, int]:
    """Key-value heads, and query heads that share one."""
    heads, dim = query.shape[1:]
    kv_heads = keys.shape[2]
    group = heads // kv_heads
    if group * kv_heads != heads:
        raise UserError(f"{heads} query heads are no multiple of {kv_heads} key-value heads")
    if dim > tuning.MAX_DIM:
        raise UserError(f"heads of {dim} dimensions; the kernels take up to {tuning.MAX_DIM}")
    if keys.element_size() not in (2, 4):
        raise UserError(f"keys of {keys.dtype}; the kernels take float16, bfloat16 and float32")
    if query.dtype != keys.dtype or keys.dtype != values.dtype:
        raise InvariantError(f"queries of {query.dtype}, keys of {keys.dtype}, values of {values.dtype}: must be alike")
    if keys.shape != values.shape or keys.stride() != values.stride():
        raise InvariantError("keys and values must lie alike in memory")
    return kv_heads, group


def _scale(dim: int) -> float:
    """Of scores: powers are of 2, which a GPU takes faster than those of e."""
    return math.log2(math.e) / math.sqrt(dim)


def _processors(device: torch.device) -> int:
    """Multiprocessors of a GPU; torch keeps what it once asked for.  Elsewhere kernels are only interpreted."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def variants() -> list[Variant]:
    """Heads of 64, 128 and 256 in bf16, and of 128 in fp32, with every height of a tile and both ways of finding pages;
    and one that makes the same code but for a type and a mask: fp16, heads that are padded (80 and 96 to 128)."""
    widths = (("bf16", 64), ("bf16", 128), ("bf16", 256), ("fp32", 128))
    decode = [_decode_variant(*each, whole) for each in widths for whole in (True, False)]
    decode.append(_decode_variant("fp16", 96, False))
    prefill = [
        _prefill_variant(dtype, dim, tuned)
        for dtype, dim in widths
        for tuned in tuning.prefill_tunings(_BYTES[dtype], dim)
    ]
    return [*decode, *(_sum_variant("bf16", dim) for dim in (64, 128, 256)), *prefill]


_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
_STRIDES = ("query_row", "query_head", "page_stride", "position_stride", "head_stride", "out_row", "out_head")
_PAGES = {True: "pages of whole blocks", False: "any pages"}


def _tensors(dtype: str) -> dict[str, str]:
    return {**dict.fromkeys(("query", "keys", "values", "out"), f"*{dtype}"), "tables": "*i32"}


def _integers(*names: str) -> dict[str, str]:
    return dict.fromkeys((*_STRIDES, "table_row", "rows", "kv_heads", "group", "page_size", "window", *names), "i32")


def _decode_variant(dtype: str, dim: int, whole: bool) -> Variant:
    tuned, width = tuning.decode_tuning(_BYTES[dtype], dim), tuning.width_of(dim)
    more = {"lengths": "*i32", "parts": "*fp32", "levels": "*fp32", "spread": "*i32", "scale": "fp32"}
    return Variant(
        kernel=decode_shares,
        signature={**_tensors(dtype), **_integers(), **more},
        constants={"DIM": dim, "WIDTH": width, "BLOCK": tuned.block, "WHOLE": whole, "BAND": tuning.BAND},
        num_warps=tuned.warps,
        num_stages=tuned.stages,
        label=f"{dtype}, heads of {dim}, {_PAGES[whole]}",
        divisible=_STRIDES,
    )


def _sum_variant(dtype: str, dim: int) -> Variant:
    pointers = {"parts": "*fp32", "levels": "*fp32", "spread": "*i32", "lengths": "*i32", "out": f"*{dtype}"}
    return Variant(
        kernel=decode_sum,
        signature={**pointers, **dict.fromkeys(("out_row", "out_head", "group", "bands"), "i32")},
        constants={"DIM": dim, "WIDTH": tuning.width_of(dim), "BAND": tuning.BAND, "PARTS": _PARTS},
        num_warps=_SUM_WARPS,
        label=f"{dtype}, heads of {dim}",
        divisible=("out_row", "out_head"),
    )


def _prefill_variant(dtype: str, dim: int, tuned: tuning.PrefillTuning) -> Variant:
    constants = {"DIM": dim, "WIDTH": tuning.width_of(dim), "HEIGHT": tuned.height, "BLOCK": tuned.block}
    return Variant(
        kernel=prefill_tiles,
        signature={**_tensors(dtype), **_integers("slices"), "firsts": "*i32", "starts": "*i32", "scale": "fp32"},
        constants={**constants, "BAND": tuning.BAND},
        num_warps=tuned.warps,
        num_stages=tuned.stages,
        label=f"{dtype}, heads of {dim}, {tuned.height} rows",
        divisible=_STRIDES,
    )
