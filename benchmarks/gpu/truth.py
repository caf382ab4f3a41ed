"""What the kernels are held to: written out plainly, in float32 or float64, one request at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from stepwell.benchmarks.gpu.inputs import Paged


def context(it: Paged, row: int, length: int) -> tuple[Tensor, Tensor]:
    """Keys and values of a request in float32: [kv heads, length, dim]."""
    size = it.keys.shape[1]
    pages = it.tables[row, : -(-length // size)].long()
    found = (each[pages].flatten(0, 1)[:length].float().transpose(0, 1) for each in (it.keys, it.values))
    keys, values = found
    return keys, values


def attention(query: Tensor, it: Paged, row: int, start: int, window: int) -> Tensor:
    """Queries [rows, heads, dim] at positions ``start`` … of request ``row``: each sees what is not after it, and of
    that the last ``window`` positions (0: all)."""
    rows, heads, dim = query.shape
    keys, values = context(it, row, start + rows)
    groups = heads // keys.shape[0]
    position = torch.arange(start, start + rows, device=query.device)[:, None]
    other = torch.arange(start + rows, device=query.device)
    hidden = other > position
    if window:
        hidden |= other <= position - window
    out = torch.empty(query.shape, dtype=torch.float32, device=query.device)
    for head in range(heads):
        scores = query[:, head].float() @ keys[head // groups].T * dim**-0.5
        out[:, head] = scores.masked_fill_(hidden, -torch.inf).softmax(-1) @ values[head // groups]
    return out


def norm(states: Tensor, weight: Tensor, eps: float) -> Tensor:
    """In float64."""
    wide = states.double()
    return wide / (wide.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


def turned(heads: Tensor, positions: Tensor, frequencies: Tensor) -> Tensor:
    """Rotary positions: a pair of numbers is one complex number, turned in float64 by an angle taken in float32."""
    angles = (positions[:, None].float() * frequencies).double()[:, None]
    low, high = heads.double().chunk(2, dim=-1)
    product = torch.complex(low, high) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((product.real, product.imag), -1)


_ROUNDED = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
"""Half a unit in the last place, as a part of the number, at most."""
_SUMS = 64 * 2.0**-24
"""What sums and functions in float32 may be off, as a part of a number of the usual size."""


def rounding(found: Tensor, truth: Tensor) -> float:
    """The largest error as a share of what is allowed where only the result is rounded."""
    return _worst(found, truth, lambda size, usual: 1.01 * _unit(found) * size + _SUMS * torch.maximum(size, usual))


def mixing(found: Tensor, truth: Tensor) -> float:
    """The same where weights are rounded too before they are summed up, as in attention: three half units of a number
    of the usual size."""
    return _worst(found, truth, lambda size, usual: (3 * _unit(found) + _SUMS) * torch.maximum(size, usual))


def _unit(found: Tensor) -> float:
    """Triton's interpreter cuts bfloat16 off where hardware rounds it."""
    interpreted = found.device.type == "cpu" and found.dtype == torch.bfloat16
    return _ROUNDED[found.dtype] * (2 if interpreted else 1)


def _worst(found: Tensor, truth: Tensor, allowed: Callable[[Tensor, Tensor], Tensor]) -> float:
    """What is not a number is infinitely far off."""
    if not found.numel():
        return 0.0
    size = truth.abs()
    usual = size.square().mean().sqrt()
    error = (found.to(truth.dtype) - truth).abs() / allowed(size, usual)
    return float(error.nan_to_num(nan=torch.inf).max())
