"""The gate of a feed-forward layer (Shazeer 2020) in plain torch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def swiglu(gate_up: Tensor, *, out: Tensor | None = None) -> Tensor:
    """silu(gate) × up of ``gate_up`` [rows, 2 × inner]: [rows, inner].  Only the result is rounded."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    gated = F.silu(gate).mul_(up).to(gate_up.dtype)
    return gated if out is None else out.copy_(gated)
