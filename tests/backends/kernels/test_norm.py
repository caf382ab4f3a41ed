"""The residual sum and its norm, against float64."""

from __future__ import annotations

from stepwell.tests.helpers.kernels import DEVICE  # skips where there is no Triton  # isort: skip

from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.backends.kernels.norm import reference, triton
from stepwell.core.errors import UserError
from stepwell.tests.backends.kernels.rows import GuardedRows, assert_near, spaced

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
EPS = 1e-5
BOTH = pytest.mark.parametrize("kernels", [reference, triton], ids=["reference", "triton"])


@BOTH
@settings(max_examples=15, deadline=None)
@given(
    rows=st.integers(0, 5),
    hidden=st.integers(1, 300),
    dtype=st.sampled_from(DTYPES),
    added=st.booleans(),
    gap=st.integers(0, 9),
    seed=st.integers(0, 1 << 20),
)
def test_equals_float64(
    kernels: ModuleType, rows: int, hidden: int, dtype: torch.dtype, added: bool, gap: int, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    states = spaced(torch.randn((rows, hidden), generator=draw) * 3, gap)
    more = spaced(torch.randn((rows, hidden), generator=draw).to(dtype), gap + 1) if added else None
    weight = (1 + 0.1 * torch.randn(hidden, generator=draw)).to(DEVICE)
    sums = states.double() + (0 if more is None else more.double())
    truth = sums / (sums.square().mean(-1, keepdim=True) + EPS).sqrt() * weight.double()
    out = GuardedRows(rows, hidden, dtype=dtype, gap=gap + 2)
    returned = kernels.add_norm(states, more, weight, EPS, dtype, out=out.tensor)
    out.check()
    assert returned is out.tensor or returned.data_ptr() == out.tensor.data_ptr()
    assert_near(returned, truth, interpreted=kernels is triton)
    assert torch.equal(states, sums.float())
    again = kernels.add_norm(states, None, weight, EPS, dtype)
    assert torch.equal(again, returned)


def test_a_row_that_fits_no_program_is_refused() -> None:
    states = torch.zeros((1, triton.WIDEST + 1), device=DEVICE)
    with pytest.raises(UserError, match="16385 numbers"):
        triton.add_norm(states, None, states[0], EPS, torch.float32)


def test_a_rows_norm_does_not_depend_on_its_company() -> None:
    states = torch.randn((7, 96), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    weight = torch.ones(96, device=DEVICE)
    together = triton.add_norm(states.clone(), None, weight, EPS, torch.float32)
    alone = [triton.add_norm(row[None].clone(), None, weight, EPS, torch.float32) for row in states]
    assert torch.equal(together, torch.cat(alone))
