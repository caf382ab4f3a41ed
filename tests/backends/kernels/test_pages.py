"""Whole pages copied: in a pool, out of it into one run of memory, and back."""

from __future__ import annotations

from stepwell.tests.helpers.kernels import DEVICE  # skips where there is no Triton  # isort: skip

from types import ModuleType

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from stepwell.backends.kernels.pages import reference, triton
from stepwell.core.errors import InvariantError

BOTH = pytest.mark.parametrize("kernels", [reference, triton], ids=["reference", "triton"])
DTYPES = st.sampled_from((torch.float32, torch.bfloat16, torch.float16))
PAGES = 6


def pools(layers: int, page_size: int, dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Every number is another, but the last page, which belongs to nobody and holds not-a-number."""
    shape = (layers, PAGES + 1, page_size, 2, dim)
    count = 2 * layers * (PAGES + 1) * page_size * 2 * dim
    bits = torch.arange(count, dtype=torch.int32, device=DEVICE).to(torch.int16 if dtype.itemsize == 2 else torch.int32)
    keys, values = bits.view(dtype).clone().view(2, *shape)
    keys[:, -1], values[:, -1] = torch.nan, torch.nan
    return keys, values


def equal(first: Tensor, second: Tensor) -> bool:
    """To the last bit, not-a-numbers included."""
    bits = torch.int16 if first.itemsize == 2 else torch.int32
    return torch.equal(first.contiguous().view(bits), second.contiguous().view(bits))


numbers = st.lists(st.integers(0, PAGES - 1), max_size=4, unique=True)


@BOTH
@settings(max_examples=15, deadline=None)
@given(
    layers=st.integers(1, 3),
    page_size=st.sampled_from((1, 3, 8)),
    dim=st.sampled_from((2, 6, 16)),
    dtype=DTYPES,
    targets=numbers,
    data=st.data(),
)
def test_copies_read_all_before_they_write(
    kernels: ModuleType,
    layers: int,
    page_size: int,
    dim: int,
    dtype: torch.dtype,
    targets: list[int],
    data: st.DataObject,
) -> None:
    """Chains and circles included, and one page copied to several places."""
    sources = [data.draw(st.integers(0, PAGES - 1)) for _ in targets]
    keys, values = pools(layers, page_size, dim, dtype)
    wanted = keys.clone(), values.clone()
    for source, target in zip(sources, targets, strict=True):
        wanted[0][:, target], wanted[1][:, target] = keys[:, source].clone(), values[:, source].clone()
    kernels.copy_pages(keys, values, torch.tensor(sources, dtype=torch.int64), torch.tensor(targets, dtype=torch.int64))
    assert equal(keys, wanted[0])
    assert equal(values, wanted[1])


@BOTH
@settings(max_examples=15, deadline=None)
@given(
    layers=st.integers(1, 3),
    page_size=st.sampled_from((1, 3, 8)),
    dim=st.sampled_from((2, 6, 16)),
    dtype=DTYPES,
    away=numbers,
    data=st.data(),
)
@example(layers=1, page_size=65, dim=16, dtype=torch.bfloat16, away=[4, 1], data=None)  # more than one program takes
def test_pages_go_away_and_come_back_elsewhere(
    kernels: ModuleType,
    layers: int,
    page_size: int,
    dim: int,
    dtype: torch.dtype,
    away: list[int],
    data: st.DataObject | None,
) -> None:
    keys, values = pools(layers, page_size, dim, dtype)
    before = keys.clone(), values.clone()
    room = torch.full((len(away) + 2, 2, layers, page_size, 2, dim), torch.nan, dtype=dtype, device=DEVICE)
    staged = room[1:-1]
    assert kernels.gather_pages(keys, values, torch.tensor(away, dtype=torch.int64), out=staged) is staged
    for place, page in enumerate(away):
        assert equal(staged[place, 0], keys[:, page])
        assert equal(staged[place, 1], values[:, page])
    assert room[[0, -1]].isnan().all()
    assert equal(keys, before[0])
    assert equal(values, before[1])
    back = data.draw(st.permutations(range(PAGES)))[: len(away)] if data else [0, 5]
    kernels.scatter_pages(staged, keys, values, torch.tensor(back, dtype=torch.int64))
    for now, was in zip((keys, values), before, strict=True):
        wanted = was.clone()
        wanted[:, back] = was[:, away]
        assert equal(now, wanted)


def test_pages_that_are_not_one_run_of_memory_are_refused() -> None:
    keys, values = pools(2, 4, 8, torch.float32)
    page = torch.tensor([0])
    with pytest.raises(InvariantError, match="one run of memory"):
        triton.copy_pages(keys.transpose(2, 3), values.transpose(2, 3), page, page + 1)
    with pytest.raises(InvariantError, match="not \\(4, 2, 8\\)"):
        triton.gather_pages(keys, values, page, out=torch.zeros((1, 2, 2, 4, 2, 8), dtype=torch.float16, device=DEVICE))
    wider = torch.zeros((2, 9, 4, 2, 8), device=DEVICE)[:, : PAGES + 1]
    with pytest.raises(InvariantError, match="values at"):
        triton.copy_pages(keys, wider, page, page + 1)
