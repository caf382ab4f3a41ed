"""The gate of the feed-forward layer, against float64."""

from __future__ import annotations

from stepwell.tests.helpers.kernels import DEVICE  # skips where there is no Triton  # isort: skip

from types import ModuleType

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stepwell.backends.kernels.swiglu import reference, triton
from stepwell.tests.backends.kernels.rows import GuardedRows, assert_near, spaced

BOTH = pytest.mark.parametrize("kernels", [reference, triton], ids=["reference", "triton"])


@BOTH
@settings(max_examples=15, deadline=None)
@given(
    rows=st.integers(0, 4),
    inner=st.integers(1, 80),
    dtype=st.sampled_from((torch.float32, torch.bfloat16, torch.float16)),
    gap=st.integers(0, 9),
    seed=st.integers(0, 1 << 20),
)
@example(rows=2, inner=1025, dtype=torch.bfloat16, gap=3, seed=0)  # more than one program takes
def test_equals_float64(kernels: ModuleType, rows: int, inner: int, dtype: torch.dtype, gap: int, seed: int) -> None:
    drawn = torch.randn((rows, 2 * inner), generator=torch.Generator().manual_seed(seed)) * 4
    gate_up = spaced(drawn.to(dtype), gap)
    gate, up = gate_up.double().chunk(2, dim=-1)
    out = GuardedRows(rows, inner, dtype=dtype, gap=gap)
    kernels.swiglu(gate_up, out=out.tensor)
    out.check()
    assert_near(out.tensor, gate * gate.sigmoid() * up, interpreted=kernels is triton)
    assert torch.equal(kernels.swiglu(gate_up), out.tensor)


@BOTH
def test_far_gates_close_and_open(kernels: ModuleType) -> None:
    gate_up = torch.tensor([[-1e4, 1e4, 0.0, 2.0, 2.0, 2.0]], device=DEVICE)
    assert kernels.swiglu(gate_up).tolist() == [[0.0, 2e4, 0.0]]
