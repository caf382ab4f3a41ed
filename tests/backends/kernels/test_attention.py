"""Paged attention: the reference against the definition, the kernels (interpreted) against both, and laws of theirs."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from stepwell.backends.kernels.attention import decoding, prefilling, reference, tuning
from stepwell.backends.kernels.attention import triton as kernels
from stepwell.core.errors import InvariantError, UserError
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


@settings(max_examples=10, deadline=None)
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


@settings(max_examples=10, deadline=None)
@given(shapes, slices_of_requests, st.integers(1, 3))
def test_the_reference_of_prefill_is_the_definition(shape: Shape, slices: list[tuple[int, int]], spare: int) -> None:
    pool = shape.pool([start + count for start, count in slices])
    query = shape.queries(sum(count for _, count in slices) + spare)
    found = prefilled(shape, pool, query, slices, module=reference)
    assert_close(found, truth_of_slices(shape, pool, query, slices), shape.dtype)


@settings(max_examples=5, deadline=None)
@given(shapes, lengths_of_rows, st.integers(1, 9))
def test_decode_is_the_definition(shape: Shape, lengths: list[int], programs: int) -> None:
    pool, query = shape.pool(lengths), shape.queries(len(lengths))
    assert_close(decoded(shape, pool, query, programs), truth_of_rows(shape, pool, query), shape.dtype)


@settings(max_examples=5, deadline=None)
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


@settings(max_examples=3, deadline=None)
@given(shapes, lengths_of_rows)
def test_decode_is_prefill_of_slices_of_one_row(shape: Shape, lengths: list[int]) -> None:
    lengths = [length + 1 for length in lengths]
    pool, query = shape.pool(lengths), shape.queries(len(lengths))
    slices = [(length - 1, 1) for length in lengths]
    assert_close(prefilled(shape, pool, query, slices), decoded(shape, pool, query, 3).double(), shape.dtype)


few_heads = st.builds(lambda shape: shape._replace(kv_heads=1, group=min(shape.group, 4)), shapes)


@settings(max_examples=3, deadline=None)
@given(few_heads, st.lists(st.integers(1, 12), min_size=2, max_size=3))
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
    lengths = [150, 0, 3, 70]
    pool, query = shape.pool(lengths), shape.queries(len(lengths))
    alone = decoded(shape, pool, query, 1)
    for programs in (2, 40):
        assert_close(decoded(shape, pool, query, programs), alone.double(), shape.dtype)


def test_the_page_size_changes_nothing() -> None:
    found = []
    for page_size in PAGE_SIZES:
        shape = PLAIN._replace(page_size=page_size, kv_heads=1)
        pool, query = shape.pool([70, 33]), shape.queries(2)
        found.append(decoded(shape, pool, query, 2))
    assert all(torch.equal(each, found[0]) for each in found)


# ------------------------------------------------------------------------------------------------ corners


def test_more_rows_than_are_looked_at_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "_LENGTHS", tl.constexpr(4))
    shape = PLAIN._replace(kv_heads=1, page_size=8)
    pool, query = shape.pool([0, 3, 40, 0, 0, 0, 0, 0, 0, 90, 1]), shape.queries(11)
    assert_close(decoded(shape, pool, query, 3), truth_of_rows(shape, pool, query), shape.dtype)


def test_more_slices_than_are_looked_at_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefilling, "_SLICES", tl.constexpr(4))
    shape = PLAIN._replace(kv_heads=1, page_size=8)
    slices = [(0, 0), (3, 1), (0, 9), (0, 0), (0, 0), (7, 2), (0, 1), (20, 0), (0, 3)]
    pool, query = shape.pool([start + count for start, count in slices]), shape.queries(17)
    assert_close(prefilled(shape, pool, query, slices), truth_of_slices(shape, pool, query, slices), shape.dtype)


@pytest.mark.parametrize("page_size", [1, 16, 32])
def test_pages_before_a_window_may_be_anybodys(page_size: int) -> None:
    """A request gives pages back that its window has left; the table may say anything in their place."""
    shape = PLAIN._replace(window=20, page_size=page_size, kv_heads=1)
    pool, query = shape.pool([150, 90]), shape.queries(2)
    truth = truth_of_rows(shape, pool, query)
    for row, length in enumerate(pool.lengths):
        pool.tables[row, : (length - shape.window) // page_size] = -1
    assert_close(decoded(shape, pool, query, 3), truth, shape.dtype)
    slices = [(length - 1, 1) for length in pool.lengths]
    assert_close(prefilled(shape, pool, query, slices), truth, shape.dtype)


@pytest.mark.parametrize("longest", [0, 40])
def test_results_are_made_where_none_are_given(longest: int) -> None:
    pool, query = PLAIN.pool([40, 0]), PLAIN.queries(2)
    found = kernels.paged_decode(query, pool.keys, pool.values, pool.tables, pool.known, longest=longest)
    assert_close(found.cpu(), truth_of_rows(PLAIN, pool, query), PLAIN.dtype)


def test_no_rows_at_all() -> None:
    pool, query = PLAIN.pool([]), PLAIN.queries(0)
    nothing = torch.zeros(0, dtype=torch.int32, device=DEVICE)
    firsts = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    for module in (kernels, reference):
        made = module.paged_decode(query, pool.keys, pool.values, pool.tables, nothing)
        assert made.shape == query.shape
        made = module.paged_prefill(query, pool.keys, pool.values, pool.tables, firsts, nothing, longest_slice=0)
        assert made.shape == query.shape


def test_rows_without_slices_are_zeros() -> None:
    pool, query = PLAIN.pool([]), PLAIN.queries(3)
    nothing = torch.zeros(0, dtype=torch.int32, device=DEVICE)
    firsts = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    out = PLAIN.output(3)
    kernels.paged_prefill(query, pool.keys, pool.values, pool.tables, firsts, nothing, longest_slice=0, out=out.tensor)
    assert not out.check().any()


def test_what_the_kernels_do_not_take_is_refused() -> None:
    pool = PLAIN.pool([3])

    def decode(query: Tensor, keys: Tensor, values: Tensor) -> None:
        kernels.paged_decode(query, keys, values, pool.tables, pool.known)

    with pytest.raises(UserError, match="3 query heads are no multiple of 2"):
        decode(queries(1, 3, 64, torch.float32), pool.keys, pool.values)
    wide = Pool([3], 16, 2, 320, torch.float32)
    with pytest.raises(UserError, match="320 dimensions"):
        decode(queries(1, 8, 320, torch.float32), wide.keys, wide.values)
    with pytest.raises(UserError, match="float64"):
        decode(queries(1, 8, 64, torch.float64), pool.keys.double(), pool.values.double())
    with pytest.raises(InvariantError, match="alike"):
        decode(queries(1, 8, 64, torch.float32), pool.keys, pool.values.transpose(1, 2).contiguous().transpose(1, 2))
    with pytest.raises(InvariantError, match="float16"):
        decode(queries(1, 8, 64, torch.float16), pool.keys, pool.values)


# ------------------------------------------------------------------------------------------------ the choice


@given(st.integers(1, 300), st.integers(1, 64), st.integers(1, 40), st.integers(0, 100_000), st.sampled_from([1, 132]))
def test_programs_are_no_more_than_blocks(rows: int, kv_heads: int, group: int, longest: int, processors: int) -> None:
    tuned = tuning.decode_tuning(2, 128)
    programs = tuning.decode_programs(tuned, processors, rows, kv_heads, group, longest)
    blocks = rows * kv_heads * -(-group // tuning.BAND) * -(-longest // tuned.block)
    assert programs == max(1, min(processors * tuned.programs, blocks))


@given(st.sampled_from([2, 4]), st.integers(1, 256), st.integers(1, 64), st.integers(1, 5000))
def test_a_tile_is_the_lowest_that_takes_the_slice(itemsize: int, dim: int, group: int, longest: int) -> None:
    tuned = tuning.prefill_tuning(itemsize, dim, group, longest)
    choices = tuning.prefill_tunings(itemsize, dim)
    assert list(choices) == sorted(choices, key=lambda each: each.height)
    rows = min(group, tuning.BAND) * longest
    assert tuned == ([each for each in choices if each.height >= rows] or choices[-1:])[0]
    assert tuned.height >= tuning.BAND
