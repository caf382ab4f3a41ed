"""A weight matrix, laid out the way this processor multiplies it fastest."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

_ROWS = 16
"""Rows for which the layout is chosen; it serves every other number of rows as well (measured from 1 to 512)."""


class Linear(Protocol):
    """Multiplies rows by a transposed weight."""

    @property
    def weight(self) -> Tensor: ...
    @property
    def nbytes(self) -> int: ...
    def __call__(self, rows: Tensor) -> Tensor: ...


class Matrix:
    """In bfloat16 on a processor it is packed once, which at few rows takes about half the time of packing it in every
    call."""

    __slots__ = ("_packed", "nbytes", "weight")

    def __init__(self, weight: Tensor) -> None:
        self.nbytes = weight.numel() * weight.element_size()
        self._packed = weight.dtype == torch.bfloat16 and weight.device.type == "cpu" and packs() and has_bfloat16()
        self.weight = _packed(weight) if self._packed else weight.contiguous()

    def __call__(self, rows: Tensor) -> Tensor:
        return _product(rows, self.weight) if self._packed else F.linear(rows, self.weight)


class SteadyMatrices:
    """Makes matrices of which a row's product has the same bits in any company.

    How a library of products sums depends on how many rows there are, so rows are multiplied at few heights, of which
    it was tried, for every shape of a matrix, that they give the same bits: all of ``_HEIGHTS`` where the library is
    oneDNN, and otherwise perhaps ``tile`` alone.
    """

    _HEIGHTS = (256, 64)

    def __init__(self, tile: int) -> None:
        self._tile = tile
        self._heights: dict[torch.Size, list[int]] = {}

    def __call__(self, weight: Tensor) -> SteadyMatrix:
        made = SteadyMatrix(weight, [self._tile])
        found = self._heights.get(weight.shape)
        if found is None:
            found = [height for height in self._HEIGHTS if self._alike(made, height)]
            self._heights[weight.shape] = found
        made.heights = [*found, self._tile]
        return made

    def _alike(self, matrix: SteadyMatrix, height: int) -> bool:
        """Whether rows at that height get the bits that they get in tiles.  No other height was allowed yet."""
        inner = matrix.shape[1]
        drawn = torch.randn(height, inner, generator=torch.Generator().manual_seed(0))
        rows = drawn.to(matrix.weight.device, matrix.dtype)
        return torch.equal(matrix.at_once(rows), matrix(rows))


class SteadyMatrix:
    """See ``SteadyMatrices``.  The number of rows is a multiple of the last and lowest height."""

    __slots__ = ("_packed", "dtype", "heights", "nbytes", "shape", "weight")

    def __init__(self, weight: Tensor, heights: list[int]) -> None:
        self.shape, self.dtype, self.heights = weight.shape, weight.dtype, heights
        self.nbytes = weight.numel() * weight.element_size()
        self._packed = weight.device.type == "cpu" and packs()
        self.weight = _packed(weight) if self._packed else weight.contiguous()

    def __call__(self, rows: Tensor) -> Tensor:
        parts, at, count = [], 0, rows.shape[0]
        for height in self.heights:
            while count - at >= height:
                parts.append(self.at_once(rows[at : at + height]))
                at += height
        assert at == count, f"{count} rows are no multiple of {self.heights[-1]}"
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def at_once(self, rows: Tensor) -> Tensor:
        return _product(rows, self.weight) if self._packed else F.linear(rows, self.weight)


def _packed(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS)
    return packed


def _product(rows: Tensor, packed: Tensor) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, packed, None, "none", [], "")
    return product


def packs() -> bool:
    """Whether torch can pack a matrix.  (The operations are its own, so they may be gone in another version.)"""
    return all(hasattr(torch.ops.mkldnn, name) for name in ("_linear_pointwise", "_reorder_linear_weight"))


def has_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16; no if torch does not say."""
    asked = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return asked is not None and bool(asked())
