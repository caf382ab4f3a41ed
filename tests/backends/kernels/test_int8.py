"""Weights in 8 bits: rounding is bounded, and products are those of the rounded weights."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="needs the extra `model`")
pytest.importorskip("triton", reason="needs the extra `cuda`")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stepwell.backends.kernels.int8 import reference
from stepwell.backends.kernels.int8 import triton as fused
from stepwell.tests.helpers.kernels import DEVICE, Guarded


def drawn(rows: int, columns: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator).to(DEVICE, dtype)


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 20), st.integers(1, 70), st.integers(0, 999), st.sampled_from([1e-30, 1.0, 1e30]))
def test_a_weight_is_off_by_half_a_step_at_most(n: int, k: int, seed: int, size: float) -> None:
    weight = drawn(n, k, seed=seed) * size
    weight[0] = 0
    whole, scales = reference.quantise(weight)
    back = whole.double() * scales.double()[:, None]
    assert (whole.abs() <= 127).all()
    assert ((back - weight.double()).abs() <= scales.double()[:, None] * (0.5 + 1e-5)).all()
    assert (scales[0], whole[0].any()) == (0, False)
    opposite, same = reference.quantise(-weight)
    assert torch.equal(opposite, -whole)
    assert torch.equal(same, scales)


@settings(deadline=None, max_examples=12)
@given(
    st.sampled_from([1, 2, 15, 16, 17, 33, 64]),
    st.sampled_from([1, 15, 16, 70]),
    st.sampled_from([1, 32, 255, 300]),
    st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    st.integers(0, 99),
)
def test_products_are_those_of_the_rounded_weight(m: int, n: int, k: int, dtype: torch.dtype, seed: int) -> None:
    """Against float64; what lies behind each row of both matrices must not be read."""
    whole, scales = reference.quantise(drawn(n, k, seed=seed))
    held = torch.full((m, k + 8), float("nan"), dtype=dtype, device=DEVICE)
    held[:, :k] = drawn(m, k, dtype, seed + 1)
    rows = held[:, :k]
    true = rows.double() @ (whole.double() * scales.double()[:, None]).T
    bound = rows.double().abs() @ (whole.double().abs() * scales.double()[:, None]).T
    near = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype]
    out = Guarded(m, n, dtype=dtype)
    assert fused.int8_linear(rows, whole, scales, out=out.tensor) is out.tensor
    out.check()
    for product in (out.tensor, reference.int8_linear(rows, whole, scales)):
        assert product.dtype == dtype
        assert ((product.double() - true).abs() <= near * bound + 1e-30).all()


def test_many_rows_and_none() -> None:
    whole, scales = reference.quantise(drawn(24, 40))
    for m in (0, fused.FEW + 1):
        rows = drawn(m, 40)
        assert torch.equal(fused.int8_linear(rows, whole, scales), reference.int8_linear(rows, whole, scales))


def test_every_tile_is_used_and_holds_its_rows() -> None:
    used = {fused.tile_of(m, n) for m in range(1, fused.FEW + 1) for n in (256, 4096, 28672, 128256)}
    assert used == set(fused.TILES)
    assert all(fused.tile_of(m, 4096).m >= m for m in range(1, fused.FEW + 1))
