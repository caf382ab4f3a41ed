"""Percentiles against the rule, written out naively."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.core.errors import UserError
from stepwell.sim.stats import percentiles, weighted_percentile

shares = st.one_of(st.sampled_from([0.0, 0.01, 0.07, 0.5, 0.9, 0.99, 0.999, 1.0]), st.floats(0, 1))
rows = st.lists(st.tuples(st.integers(-(10**15), 10**15), st.integers(0, 1_000)), max_size=40)


def naive(pairs: list[tuple[int, int]], q: float) -> int | None:
    total = sum(weight for _, weight in pairs)
    reached = 0
    for value, weight in sorted(pairs):
        reached += weight
        if weight and reached >= Fraction(repr(float(q))) * total:
            return value
    return None


@given(rows, shares)
def test_weighted_percentile_follows_the_rule(pairs: list[tuple[int, int]], q: float) -> None:
    values = [value for value, _ in pairs]
    weights = [weight for _, weight in pairs]
    assert weighted_percentile(values, weights, q) == naive(pairs, q)


@given(rows, st.lists(shares, max_size=5))
def test_without_weights_every_value_counts_once(pairs: list[tuple[int, int]], qs: list[float]) -> None:
    values = [value for value, _ in pairs]
    assert percentiles(values, qs) == [naive([(value, 1) for value in values], q) for q in qs]
    assert percentiles(values, qs, [3] * len(values)) == percentiles(values, qs)


def test_a_weight_is_that_many_copies() -> None:
    values, weights = [30, 10, 20], [2, 5, 93]
    copies = [value for value, weight in zip(values, weights, strict=True) for _ in range(weight)]
    for hundredth in range(101):
        q = hundredth / 100
        assert weighted_percentile(values, weights, q) == percentiles(copies, (q,))[0]


def test_the_rank_is_exact_where_floating_point_is_not() -> None:
    assert 0.07 * 100 > 7  # what would give the eighth
    assert percentiles(range(1, 101), (0.07, 0.14, 0.28, 0.29, 0.57, 0.99)) == [7, 14, 28, 29, 57, 99]


def test_integers_stay_exact_and_integers() -> None:
    big = [2**60 + 1, 2**60 + 3, 2**60 + 2]
    found = percentiles(np.array(big), (0.0, 0.5, 1.0))
    assert found == [2**60 + 1, 2**60 + 2, 2**60 + 3]
    assert all(type(value) is int for value in found)
    assert weighted_percentile([1, 2], [2**61, 2**60], 0.5) == 1
    assert weighted_percentile([0.5, 0.25], [1, 1], 0.5) == 0.25


def test_nothing_has_no_percentile() -> None:
    assert percentiles([], (0.5, 0.9)) == [None, None]
    assert percentiles(np.array([], dtype=np.int64), (0.5,)) == [None]
    assert weighted_percentile([1, 2], [0, 0], 0.5) is None
    assert weighted_percentile([1, 2], [0, 4], 0.0) == 2


@pytest.mark.parametrize("q", [-0.1, 1.0001, 50, float("nan")])
def test_shares_outside_0_to_1_are_refused(q: float) -> None:
    with pytest.raises(UserError, match="share between 0 and 1"):
        percentiles([1], (q,))


def test_malformed_input_is_refused() -> None:
    for values, weights in (
        ([1, 2], [1]),
        ([1, 2], [1, -1]),
        ([1, 2], [0.5, 0.5]),
        ([1, 2], [2**62 - 1, 2**62 - 1]),
        ([1.0, float("nan")], [1, 1]),
        ([[1], [2]], [[1], [1]]),
        (["a", "b"], [1, 1]),
    ):
        with pytest.raises(UserError):
            weighted_percentile(values, weights, 0.5)
