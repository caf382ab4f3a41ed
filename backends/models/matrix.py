"""A weight matrix, laid out the way this processor multiplies it fastest."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_ROWS = 16
"""Rows for which the layout is chosen; it serves every other number of rows as well (measured from 1 to 512)."""


class Matrix:
    """Multiplies rows by a transposed weight.  In bfloat16 on a processor it is packed once, which at few rows takes
    about half the time of packing it in every call."""

    __slots__ = ("_packed", "_weight", "nbytes")

    def __init__(self, weight: Tensor) -> None:
        self.nbytes = weight.numel() * weight.element_size()
        self._weight = weight.contiguous()
        self._packed: Tensor | None = None
        if weight.dtype == torch.bfloat16 and weight.device.type == "cpu" and packs():
            self._packed = torch.ops.mkldnn._reorder_linear_weight(self._weight, _ROWS)
            self._weight = self._packed

    def __call__(self, rows: Tensor) -> Tensor:
        if self._packed is None:
            return F.linear(rows, self._weight)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._packed, None, "none", [], "")
        return product


def packs() -> bool:
    """Whether this processor multiplies bfloat16 and torch can pack for it."""
    return hasattr(torch.ops.mkldnn, "_linear_pointwise") and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
