"""Whole pages copied, all layers and both pools by one launch.

A page of a layer is one run of memory, copied as integers of the same width: every bit pattern arrives as it was.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from stepwell.backends.kernels.ahead import Variant
from stepwell.core.errors import InvariantError

BLOCK = 2048
"""Numbers of keys, and as many of values, that a program takes of a page: of 2 bytes each, 64 bytes a thread."""
WARPS = 4
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32}


class _Side(NamedTuple):
    """Where pages come from or go to; ``pages`` says which, None: all, as staged pages lie."""

    keys: Tensor
    values: Tensor
    layer_axis: int
    page_axis: int
    pages: Tensor | None


@triton.jit
def _move(
    source_keys,
    source_values,
    target_keys,
    target_values,
    sources,
    targets,
    size,
    source_layer,
    source_page,
    target_layer,
    target_page,
    FROM_POOL: tl.constexpr,
    TO_POOL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64)
    layer = tl.program_id(1).to(tl.int64)
    number = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    inside = number < size
    source = tl.load(sources + place) if FROM_POOL else place
    target = tl.load(targets + place) if TO_POOL else place
    here = source * source_page + layer * source_layer + number
    there = target * target_page + layer * target_layer + number
    key = tl.load(source_keys + here, mask=inside)
    value = tl.load(source_values + here, mask=inside)
    tl.store(target_keys + there, key, mask=inside)
    tl.store(target_values + there, value, mask=inside)


def copy_pages(keys: Tensor, values: Tensor, sources: Tensor, targets: Tensor) -> None:
    """As ``reference.copy_pages``.

    Page numbers may lie on the host, where it costs nothing to see that no page is both read and written.  Of those on
    a device that is not asked, as the host would have to wait: their pages are staged.
    """
    if sources.device.type == "cpu" and not torch.isin(targets, sources).any():
        _launch(_pool(keys, values, sources), _pool(keys, values, targets), len(sources))
        return
    staged = keys.new_empty((len(sources), 2, keys.shape[0], *keys.shape[2:]))
    scatter_pages(gather_pages(keys, values, sources, out=staged), keys, values, targets)


def gather_pages(keys: Tensor, values: Tensor, pages: Tensor, *, out: Tensor) -> Tensor:
    """As ``reference.gather_pages``."""
    _launch(_pool(keys, values, pages), _staged(out), len(pages))
    return out


def scatter_pages(staged: Tensor, keys: Tensor, values: Tensor, pages: Tensor) -> None:
    """As ``reference.scatter_pages``."""
    _launch(_staged(staged), _pool(keys, values, pages), len(pages))


def _pool(keys: Tensor, values: Tensor, pages: Tensor) -> _Side:
    return _Side(keys, values, 0, 1, pages.to(keys.device, non_blocking=True))


def _staged(staged: Tensor) -> _Side:
    return _Side(staged[:, 0], staged[:, 1], 1, 0, None)


def _launch(source: _Side, target: _Side, count: int) -> None:
    _check(source, target)
    size = math.prod(source.keys.shape[2:])
    layers = source.keys.shape[source.layer_axis]
    if not count:
        return
    bits = _BITS[source.keys.element_size()]
    _move[(count, layers, triton.cdiv(size, BLOCK))](
        source.keys.view(bits),
        source.values.view(bits),
        target.keys.view(bits),
        target.values.view(bits),
        source.pages,
        target.pages,
        size,
        source.keys.stride(source.layer_axis),
        source.keys.stride(source.page_axis),
        target.keys.stride(target.layer_axis),
        target.keys.stride(target.page_axis),
        FROM_POOL=source.pages is not None,
        TO_POOL=target.pages is not None,
        BLOCK=BLOCK,
        num_warps=WARPS,
    )


def _check(source: _Side, target: _Side) -> None:
    """Raises ``InvariantError`` unless all pages are alike and each is one run of memory."""
    page, dtype = source.keys.shape[2:], source.keys.dtype
    run = (page[1] * page[2], page[2], 1)
    for each in (*source[:2], *target[:2]):
        if each.shape[2:] != page or each.stride()[2:] != run or each.dtype != dtype:
            raise InvariantError(
                f"pages of {tuple(page)} {dtype}, each in one run of memory, are copied to and from their like;"
                f" not {tuple(each.shape[2:])} {each.dtype} with strides {each.stride()[2:]}"
            )
    for side in (source, target):
        if side.keys.stride() != side.values.stride():
            raise InvariantError(f"keys lie at strides {side.keys.stride()}, values at {side.values.stride()}")


def variants() -> list[Variant]:
    """Within a pool, out of it and into it, for numbers of every width."""
    ways = {"copy": (True, True), "gather": (True, False), "scatter": (False, True)}
    return [_variant(bits, name, *way) for bits in ("i16", "i32") for name, way in ways.items()]


def _variant(bits: str, name: str, from_pool: bool, to_pool: bool) -> Variant:
    data = dict.fromkeys(("source_keys", "source_values", "target_keys", "target_values"), f"*{bits}")
    index = {"sources": "*i64"} if from_pool else {}
    index |= {"targets": "*i64"} if to_pool else {}
    strides = ("source_layer", "source_page", "target_layer", "target_page")
    absent = {side: None for side in ("sources", "targets") if side not in index}
    return Variant(
        kernel=_move,
        signature={**data, **index, "size": "i32", **dict.fromkeys(strides, "i64")},
        constants={**absent, "FROM_POOL": from_pool, "TO_POOL": to_pool, "BLOCK": BLOCK},
        num_warps=WARPS,
        label=f"{name}, {bits}",
        divisible=("size", *strides),
    )
