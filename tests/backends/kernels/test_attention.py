"""Paged attention: the reference against the definition, the kernels (interpreted) against both, and laws of theirs."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stepwell.backends.kernels.attention import reference
from stepwell.backends.kernels.attention import triton as kernels
from stepwell.tests.backends.kernels.paged import Output, Pool, assert_close, queries
from stepwell.tests.helpers.kernels import DEVICE

DTYPES = [torch.float16, torch.bfloat16, torch.float32]
PAGE_SIZES = [1, 8, 16, 20, 32, 128]


class Shape(NamedTuple):
    """What all cases share."""

    page_size: int
    kv_heads: int
    group: int
    dim: int
    dtype: torch.dtype
    window: int
    seed: int

    def pool(self, lengths: list[int]) -> Pool:
        return Pool(lengths, self.page_size, self.kv_heads, self.dim, self.dtype, self.seed)

    def queries(self, rows: int) -> Tensor:
        return queries(rows, self.kv_heads * self.group, self.dim, self.dtype, self.seed)

    def output(self, rows: int) -> Output:
        return Output(rows, self.kv_heads * self.group, self.dim, self.dtype)


shapes = st.builds(
    Shape,
    page_size=st.sampled_from(PAGE_SIZES),
    kv_heads=st.integers(1, 3),
    group=st.sampled_from([1, 2, 3, 4, 8, 17]),
    dim=st.sampled_from([16, 64, 80, 96, 128, 256]),
    dtype=st.sampled_from(DTYPES),
    window=st.sampled_from([0, 0, 1, 7, 100]),
    seed=st.integers(0, 99),
)
lengths_of_rows = st.lists(st.integers(0, 150) | st.integers(0, 3), min_size=1, max_size=4)
slices_of_requests = st.lists(st.tuples(st.integers(0, 150), st.integers(0, 20) | st.just(1)), min_size=1, max_size=4)
"""(positions known before, rows)."""


def decoded(shape: Shape, pool: Pool, query: Tensor, programs: int) -> Tensor:
    out = shape.output(len(query))
    made = kernels.decode_by(
        programs, query, pool.keys, pool.values, pool.tables, pool.known, window=shape.window, out=out.tensor
    )
    assert made is out.tensor
    return out.check()


def prefilled(
    shape: Shape, pool: Pool, query: Tensor, slices: list[tuple[int, int]], *, module: object = kernels
) -> Tensor:
    """The slices (start, rows), one of each request."""
    firsts = torch.tensor([0, *(count for _, count in slices)]).cumsum(0).to(DEVICE, torch.int32)
    starts = torch.tensor([start for start, _ in slices]).to(DEVICE, torch.int32)
    out = shape.output(len(query))
    made = module.paged_prefill(  # type: ignore[attr-defined]
        query,
        pool.keys,
        pool.values,
        pool.tables,
        firsts,
        starts,
        longest_slice=max(count for _, count in slices),
        window=shape.window,
        out=out.tensor,
    )
    assert made is out.tensor
    return out.check()


def truth_of_rows(shape: Shape, pool: Pool, query: Tensor) -> Tensor:
    return torch.stack(
        [
            pool.truth(row, index, length - 1, shape.window) if length else torch.zeros(row.shape).double()
            for index, (row, length) in enumerate(zip(query, pool.lengths, strict=True))
        ]
    )


def truth_of_slices(shape: Shape, pool: Pool, query: Tensor, slices: list[tuple[int, int]]) -> Tensor:
    at = [(index, start + step) for index, (start, count) in enumerate(slices) for step in range(count)]
    rows = [pool.truth(query[row], *where, shape.window) for row, where in enumerate(at)]
    return torch.stack(rows + [torch.zeros(query.shape[1:]).double()] * (len(query) - len(rows)))


# ------------------------------------------------------------------------------------------------ the definition


@settings(max_examples=25, deadline=None)
@given(shapes, lengths_of_rows, st.booleans())
def test_the_reference_of_decode_is_the_definition(shape: Shape, lengths: list[int], bounded: bool) -> None:
    pool, query = shape.pool(lengths), shape.queries(len(lengths))
    found = reference.paged_decode(
        query,
        pool.keys,
        pool.values,
        pool.tables,
        pool.known,
        window=shape.window,
        longest=max(lengths) if bounded else 0,
    )
    assert_close(found.cpu(), truth_of_rows(shape, pool, query), shape.dtype)


@settings(max_examples=25, deadline=None)
@given(shapes, slices_of_requests, st.integers(1, 3))
def test_the_reference_of_prefill_is_the_definition(shape: Shape, slices: list[tuple[int, int]], spare: int) -> None:
    pool = shape.pool([start + count for start, count in slices])
    query = shape.queries(sum(count for _, count in slices) + spare)
    found = prefilled(shape, pool, query, slices, module=reference)
    assert_close(found, truth_of_slices(shape, pool, query, slices), shape.dtype)


@settings(max_examples=8, deadline=None)
@given(shapes, lengths_of_rows, st.integers(1, 9))
def test_decode_is_the_definition(shape: Shape, lengths: list[int], programs: int) -> None:
    pool, query = shape.pool(lengths), shape.queries(len(lengths))
    assert_close(decoded(shape, pool, query, programs), truth_of_rows(shape, pool, query), shape.dtype)


@settings(max_examples=8, deadline=None)
@given(shapes, slices_of_requests, st.integers(1, 3))
def test_prefill_is_the_definition(shape: Shape, slices: list[tuple[int, int]], spare: int) -> None:
    pool = shape.pool([start + count for start, count in slices])
    query = shape.queries(sum(count for _, count in slices) + spare)
    assert_close(prefilled(shape, pool, query, slices), truth_of_slices(shape, pool, query, slices), shape.dtype)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(shapes, lengths_of_rows, st.integers(1, 40))
def test_decode_is_the_definition_at_many_shapes(shape: Shape, lengths: list[int], programs: int) -> None:
    pool, query = shape.pool(lengths), shape.queries(len(lengths))
    assert_close(decoded(shape, pool, query, programs), truth_of_rows(shape, pool, query), shape.dtype)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(shapes, slices_of_requests, st.integers(1, 3))
def test_prefill_is_the_definition_at_many_shapes(shape: Shape, slices: list[tuple[int, int]], spare: int) -> None:
    pool = shape.pool([start + count for start, count in slices])
    query = shape.queries(sum(count for _, count in slices) + spare)
    assert_close(prefilled(shape, pool, query, slices), truth_of_slices(shape, pool, query, slices), shape.dtype)


# ------------------------------------------------------------------------------------------------ laws


PLAIN = Shape(page_size=16, kv_heads=2, group=4, dim=64, dtype=torch.float32, window=0, seed=1)


@settings(max_examples=4, deadline=None)
@given(shapes, lengths_of_rows)
def test_decode_is_prefill_of_slices_of_one_row(shape: Shape, lengths: list[int]) -> None:
    lengths = [length + 1 for length in lengths]
    pool, query = shape.pool(lengths), shape.queries(len(lengths))
    slices = [(length - 1, 1) for length in lengths]
    assert_close(prefilled(shape, pool, query, slices), decoded(shape, pool, query, 3).double(), shape.dtype)


@settings(max_examples=4, deadline=None)
@given(shapes, st.lists(st.integers(1, 30), min_size=2, max_size=3))
def test_a_prompt_in_slices_is_the_prompt_at_once(shape: Shape, counts: list[int]) -> None:
    pool, query = shape.pool([sum(counts)]), shape.queries(sum(counts))
    whole = prefilled(shape, pool, query, [(0, sum(counts))])
    parts = [
        prefilled(shape, pool, query[start : start + count], [(start, count)])
        for start, count in zip([sum(counts[:index]) for index in range(len(counts))], counts, strict=True)
    ]
    assert_close(torch.cat(parts), whole.double(), shape.dtype)


def test_the_number_of_programs_changes_nothing_but_rounding() -> None:
    shape = PLAIN._replace(kv_heads=1)
    lengths = [300, 0, 3, 130]
    pool, query = shape.pool(lengths), shape.queries(len(lengths))
    alone = decoded(shape, pool, query, 1)
    for programs in (2, 5, 40):
        assert_close(decoded(shape, pool, query, programs), alone.double(), shape.dtype)


def test_the_page_size_changes_nothing() -> None:
    found = []
    for page_size in PAGE_SIZES:
        shape = PLAIN._replace(page_size=page_size, kv_heads=1)
        pool, query = shape.pool([70, 33]), shape.queries(2)
        found.append(decoded(shape, pool, query, 2))
    assert all(torch.equal(each, found[0]) for each in found)
