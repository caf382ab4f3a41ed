"""Rotary positions and the write to slots, against float64 and against the model that other machines run."""

from __future__ import annotations

from stepwell.tests.helpers.kernels import DEVICE  # skips where there is no Triton  # isort: skip

from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stepwell.backends.kernels.rope import reference, triton
from stepwell.backends.models.llama import rope_frequencies
from stepwell.backends.weights.source import ModelShape
from stepwell.tests.backends.kernels.rows import GuardedRows, assert_near, spaced

BOTH = pytest.mark.parametrize("kernels", [reference, triton], ids=["reference", "triton"])


def turned(heads: Tensor, positions: Tensor, frequencies: Tensor) -> Tensor:
    """In float64, each pair of numbers as one complex number."""
    # The angle itself is float32, as in every implementation: its error grows with the position.
    angles = (positions[:, None].float() * frequencies).double()[:, None]
    low, high = heads.double().chunk(2, dim=-1)
    product = torch.complex(low, high) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((product.real, product.imag), -1)


@BOTH
@settings(max_examples=12, deadline=None)
@given(
    rows=st.integers(0, 3),
    kv_heads=st.integers(1, 2),
    group=st.integers(1, 4),
    dim=st.sampled_from((2, 6, 16, 64, 80)),
    page_size=st.sampled_from((1, 3, 8)),
    dtype=st.sampled_from((torch.float32, torch.bfloat16, torch.float16)),
    gap=st.integers(0, 5),
    seed=st.integers(0, 1 << 20),
)
def test_equals_float64(
    kernels: ModuleType,
    rows: int,
    kv_heads: int,
    group: int,
    dim: int,
    page_size: int,
    dtype: torch.dtype,
    gap: int,
    seed: int,
) -> None:
    draw = torch.Generator().manual_seed(seed)
    heads = kv_heads * group
    qkv = spaced(torch.randn((rows, heads + 2 * kv_heads, dim), generator=draw).to(dtype), gap)
    positions = torch.randint(0, 140_000, (rows,), generator=draw, dtype=torch.int32).to(DEVICE)
    frequencies = 1 / 10_000 ** (torch.arange(0, dim, 2, device=DEVICE) / dim)
    pages = -(-max(rows, 1) // page_size) + 1
    slots = torch.randperm(pages * page_size, generator=draw)[:rows].to(DEVICE)
    pool = [GuardedRows(pages, page_size, kv_heads, dim, dtype=dtype, gap=gap) for _ in range(2)]
    keys, values = (each.tensor for each in pool)
    out = GuardedRows(rows, heads, dim, dtype=dtype, gap=gap)
    kernels.rotate_and_write(qkv, positions, frequencies, slots, keys, values, heads=heads, out=out.tensor)
    out.check()
    truth = turned(qkv[:, : heads + kv_heads], positions, frequencies)
    assert_near(out.tensor, truth[:, :heads], interpreted=kernels is triton)
    assert_near(keys[slots // page_size, slots % page_size], truth[:, heads:], interpreted=kernels is triton)
    assert torch.equal(values[slots // page_size, slots % page_size], qkv[:, heads + kv_heads :])
    others = torch.tensor(
        [slot for slot in range(pages * page_size) if slot not in slots.tolist()], dtype=torch.int64, device=DEVICE
    )
    for each in pool:  # what belongs to others is as it was; and then nothing outside was written either
        assert each.tensor[others // page_size, others % page_size].isnan().all()
        each.tensor[others // page_size, others % page_size] = 0
        each.check()
    made = kernels.rotate_and_write(qkv, positions, frequencies, slots, keys, values, heads=heads)
    assert torch.equal(made, out.tensor)


@BOTH
def test_turns_as_the_model_does(kernels: ModuleType) -> None:
    """Halves, not neighbours: the formula of ``models/llama.py``, with its frequencies."""
    shape = ModelShape(
        vocab_size=8, hidden=128, intermediate=8, layers=1, heads=2, kv_heads=1, head_dim=64, context=512
    )
    frequencies = rope_frequencies(shape).to(DEVICE)
    qkv = torch.randn((3, 4, 64), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    positions = torch.tensor([0, 5, 511], dtype=torch.int32, device=DEVICE)
    angles = positions[:, None, None].float() * frequencies
    cos, sin = torch.cat([angles.cos()] * 2, -1), torch.cat((-angles.sin(), angles.sin()), -1)
    wanted = qkv[:, :3] * cos + qkv[:, :3].roll(32, dims=-1) * sin
    keys, values = torch.zeros((2, 2, 2, 1, 64), device=DEVICE)
    query = kernels.rotate_and_write(
        qkv, positions, frequencies, torch.tensor([3, 0, 1], device=DEVICE), keys, values, heads=2
    )
    assert (query - wanted[:, :2]).abs().max() < 2e-6
    assert (keys.view(4, 64)[[3, 0, 1]] - wanted[:, 2]).abs().max() < 2e-6
    assert torch.equal(query[0], qkv[0, :2])  # position 0 is not turned
