"""SI-5: the step time is positive, finite and non-decreasing everywhere; a run equals its steps to the nanosecond."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.core.errors import UserError
from stepwell.core.protocols import BatchShape
from stepwell.core.testing_cost import by_steps
from stepwell.core.types import FOREVER
from stepwell.sim.cost.linear import COEFFICIENTS, Linear
from stepwell.sim.cost.linear_options import LinearOptions

FIELDS = BatchShape.__struct_fields__
GRID = {
    "prefill_tokens": (0, 1, 2_048, 4_096, 10**9),
    "decode_requests": (0, 1, 256, 512, 10**9),
    "kv_tokens": (0, 1, 131_072, 1_310_720, 10**12),
    "swap_pages": (0, 1, 8_192, 16_384, 10**9),
    "prefill_requests": (0, 1, 256, 512, 10**9),
    "copied_pages": (0, 1, 8_192, 16_384, 10**9),
    "prefill_pairs": (0, 1, 2_098_176, 10**9, 10**12),
}

counts = st.integers(0, 10**7)
shapes = st.builds(BatchShape, **dict.fromkeys(FIELDS, counts))
coefficients = st.one_of(st.just(0), st.integers(0, 10**8), st.integers(0, 999))
options = st.builds(
    Linear.Options,
    base_ns=st.integers(1, 10**8),
    **dict.fromkeys([name for name in COEFFICIENTS if name != "base_ns"], coefficients),
)


def test_si_5_the_defaults_are_the_published_step_time() -> None:
    model = Linear()
    assert model.step_ns(BatchShape()) == 6_000_000
    assert model.step_ns(BatchShape(prefill_tokens=495)) == 6_000_000 + 495 * 30_000
    assert model.step_ns(BatchShape(decode_requests=128, kv_tokens=77_000)) == 6_000_000 + 128 * 20_000 + 77_000 * 60
    everything = BatchShape(prefill_tokens=1, decode_requests=2, kv_tokens=3, swap_pages=4, prefill_requests=5)
    assert model.step_ns(everything) == 6_000_000 + 30_000 + 2 * 20_000 + 3 * 60 + 4 * 50_000


def test_si_5_a_step_of_copies_alone_costs_its_base_and_its_copies() -> None:
    model = Linear(Linear.Options(base_ns=7, swap_page_ns=11))
    assert model.step_ns(BatchShape(swap_pages=3)) == 7 + 33


def test_si_5_every_coefficient_counts() -> None:
    for name in COEFFICIENTS:
        base = msgspec.structs.replace(Linear.Options(), **{name: 2_000})
        more = msgspec.structs.replace(Linear.Options(), **{name: 3_000})
        shape = BatchShape(1, 1, 1_000, 1, 1, 1)
        assert Linear(more).step_ns(shape) > Linear(base).step_ns(shape), name


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("kv_token_ps", [0, 1, 999, 60_000, 60_123])
def test_si_5_positive_finite_and_non_decreasing_far_outside_any_table(name: str, kv_token_ps: int) -> None:
    model = Linear(Linear.Options(base_ns=1, kv_token_ps=kv_token_ps))
    for others in (0, 1, 300, 10**9):
        times = [model.step_ns(BatchShape(**{**dict.fromkeys(FIELDS, others), name: count})) for count in GRID[name]]
        assert all(type(time) is int and time > 0 for time in times)
        assert all(before <= after for before, after in pairwise(times))


@given(options, shapes, st.sampled_from(FIELDS), counts)
def test_si_5_more_of_anything_never_takes_less(chosen: LinearOptions, shape: BatchShape, name: str, more: int) -> None:
    model = Linear(chosen)
    larger = msgspec.structs.replace(shape, **{name: getattr(shape, name) + more})
    assert 0 < model.step_ns(shape) <= model.step_ns(larger)


@given(options, shapes, st.integers(0, 10**15), st.integers(0, 80), st.integers(-10, 10**10))
def test_si_5_a_run_equals_its_steps(
    chosen: LinearOptions, shape: BatchShape, start_ns: int, steps: int, ahead_ns: int
) -> None:
    model = Linear(chosen)
    until_ns = start_ns + ahead_ns
    assert model.run_ns(shape, start_ns, steps, until_ns) == by_steps(model, shape, start_ns, steps, until_ns)


@pytest.mark.parametrize("kv_token_ps", [0, 60_000, 60_123])
@pytest.mark.parametrize("steps", [0, 1, 2, 12, 13, 14, 500])
def test_si_5_a_run_ends_with_the_first_step_at_or_past_the_bound(kv_token_ps: int, steps: int) -> None:
    model = Linear(Linear.Options(kv_token_ps=kv_token_ps))
    shape = BatchShape(decode_requests=128, kv_tokens=77_001)
    full = by_steps(model, shape, 5, steps, FOREVER)
    assert model.run_ns(shape, 5, steps, FOREVER) == full
    for index, end_ns in enumerate(full):
        assert model.run_ns(shape, 5, steps, end_ns) == full[: index + 1]
        assert model.run_ns(shape, 5, steps, end_ns + 1) == full[: index + 2]
        assert model.run_ns(shape, 5, steps, end_ns - 1) == full[: index + 1]
        assert model.run_ns(shape, 5, FOREVER, end_ns) == full[: index + 1]


@pytest.mark.parametrize("name", COEFFICIENTS)
@pytest.mark.parametrize("value", [-1, 10**19, 1.5, True, "3", None])
def test_si_5_impossible_coefficients_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(UserError, match=name):
        Linear(msgspec.structs.replace(Linear.Options(), **{name: value}))


def test_si_5_a_step_that_takes_no_time_is_refused() -> None:
    with pytest.raises(UserError, match="base_ns"):
        Linear(Linear.Options(base_ns=0))


def test_options_are_frozen_and_refuse_unknown_keys() -> None:
    with pytest.raises(msgspec.ValidationError, match="kv_token_ns"):
        msgspec.convert({"kv_token_ns": 60}, Linear.Options)
    with pytest.raises(AttributeError):
        Linear.Options().base_ns = 1  # type: ignore[misc]
