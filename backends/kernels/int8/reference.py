"""Weights in 8 bits: each row of a weight by a scale of its own, symmetric about zero; the other factor stays as it is.

(Dettmers et al., "LLM.int8()", 2022, without the part for outliers: only weights are rounded here.)
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

LARGEST = 127
"""-128 is not used, so that a weight and its opposite are rounded alike."""


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """``weight`` [n, k] as int8 [n, k] and scales [n] float32; a number is off by half a scale at most.

    A row of zeros has scale 0.
    """
    wide = weight.float()
    scales = wide.abs().amax(1) / LARGEST
    steps = wide / scales.where(scales > 0, torch.ones_like(scales))[:, None]
    return steps.round_().clamp_(-LARGEST, LARGEST).to(torch.int8), scales


def int8_linear(rows: Tensor, weight: Tensor, scales: Tensor, *, out: Tensor | None = None) -> Tensor:
    """``rows`` [m, k] times the transposed weight: [m, n] in the type of ``rows``.

    The weight is widened and multiplied by what torch has; scales come last, in float32.
    """
    product = (F.linear(rows, weight.to(rows.dtype)).float() * scales).to(rows.dtype)
    return product if out is None else out.copy_(product)
