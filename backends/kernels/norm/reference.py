"""Residual sum and root mean square norm (Zhang and Sennrich 2019) in plain torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def add_norm(
    states: Tensor, added: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype, *, out: Tensor | None = None
) -> Tensor:
    """``states`` [rows, hidden] float32 grows by ``added`` [rows, hidden], in place; returns its norm, times
    ``weight`` [hidden] float32, in ``dtype``.  Sums are taken in float32."""
    if added is not None:
        states.add_(added)
    normed = F.rms_norm(states, weight.shape, weight, eps).to(dtype)
    return normed if out is None else out.copy_(normed)
