"""Intervals, pairs and ranks against tables, naive references and laws."""

from __future__ import annotations

import math
import random
import statistics as plain
from itertools import combinations, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.core.errors import UserError
from stepwell.sim.compare.statistics import (
    agreement,
    jain,
    over_sections,
    over_seeds,
    ranks,
    t_probability,
    t_quantile,
)

VALUES = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30)

# Percentage points of Student's t as printed in textbooks (two-sided 95 % and 99 %).
TABLE = {
    1: (12.706, 63.657), 2: (4.303, 9.925), 3: (3.182, 5.841), 4: (2.776, 4.604), 5: (2.571, 4.032),
    6: (2.447, 3.707), 7: (2.365, 3.499), 8: (2.306, 3.355), 9: (2.262, 3.250), 10: (2.228, 3.169),
    15: (2.131, 2.947), 20: (2.086, 2.845), 25: (2.060, 2.787), 30: (2.042, 2.750), 40: (2.021, 2.704),
    60: (2.000, 2.660), 120: (1.980, 2.617),
}  # fmt: skip


@pytest.mark.parametrize("freedom", TABLE)
def test_t_is_that_of_the_tables(freedom: int) -> None:
    assert (round(t_quantile(freedom), 3), round(t_quantile(freedom, 0.99), 3)) == TABLE[freedom]


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 12, 31])
def test_t_probability_is_the_area_under_the_density(freedom: int) -> None:
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)

    def density(t: float) -> float:
        return float(scale * (1 + t * t / freedom) ** (-(freedom + 1) / 2))

    for end in (0.1, 1.0, 2.5, 9.0):
        steps = 4_000  # Simpson's rule
        width = end / steps
        area = sum((2 + 2 * (k % 2)) * density(k * width) for k in range(1, steps)) + density(0) + density(end)
        assert t_probability(end, freedom) == pytest.approx(2 * area * width / 3, abs=1e-9)


def test_t_nears_the_normal_distribution_and_refuses_what_has_no_quantile() -> None:
    assert t_quantile(10_000) == pytest.approx(1.959964, abs=3e-4)
    for freedom, confidence in ((0, 0.95), (5, 1.0), (5, 0.0)):
        with pytest.raises(UserError):
            t_quantile(freedom, confidence)


@given(VALUES)
def test_interval_is_the_textbook_one(values: list[float]) -> None:
    told = over_seeds(values)
    half = t_quantile(len(values) - 1) * plain.stdev(values) / math.sqrt(len(values))
    assert told.mean == pytest.approx(plain.fmean(values), abs=1e-6)
    assert told.low is not None
    assert told.high is not None
    assert told.high - told.mean == pytest.approx(half, rel=1e-6, abs=1e-6)
    assert told.low <= told.mean <= told.high


@given(VALUES, st.randoms(use_true_random=False))
def test_order_of_seeds_changes_nothing(values: list[float], shuffler: random.Random) -> None:
    shuffled = list(values)
    shuffler.shuffle(shuffled)
    assert over_seeds(shuffled) == over_seeds(values)


@given(VALUES, st.floats(-1e3, 1e3), st.floats(0.01, 100))
def test_interval_moves_and_stretches_with_its_values(values: list[float], shift: float, factor: float) -> None:
    told, other = over_seeds(values), over_seeds([factor * each + shift for each in values])
    assert other.low == pytest.approx(factor * (told.low or 0.0) + shift, rel=1e-6, abs=1e-3)


def test_an_interval_covers_the_truth_as_often_as_it_says() -> None:
    source = random.Random(5)
    for count in (2, 5, 20):
        hits = 0
        for _ in range(4_000):
            told = over_seeds([source.gauss(10, 3) for _ in range(count)])
            hits += (told.low or 0) <= 10 <= (told.high or 0)
        assert 0.94 < hits / 4_000 < 0.96


def test_a_paired_interval_covers_a_difference_that_single_ones_would_drown() -> None:
    """The scatter from seed to seed is ten times the difference, and common to both."""
    source = random.Random(6)
    hits, seen, drowned = 0, 0, 0
    for _ in range(2_000):
        base = [source.gauss(100, 10) for _ in range(5)]
        other = [each + 1 + source.gauss(0, 0.5) for each in base]
        told = over_seeds([mine - theirs for mine, theirs in zip(other, base, strict=True)])
        hits += (told.low or 0) <= 1 <= (told.high or 0)
        seen += told.excludes_zero is True
        drowned += (over_seeds(other).low or 0) < (over_seeds(base).high or 0)
    assert 0.94 < hits / 2_000 < 0.96
    assert seen > 1_600
    assert drowned == 2_000


def test_sections_cover_a_mean_and_are_centred_on_the_whole() -> None:
    source = random.Random(7)
    hits = 0
    for _ in range(1_000):
        values = [source.expovariate(1) for _ in range(1_000)]
        parts = [plain.fmean(values[k : k + 50]) for k in range(0, 1_000, 50)]
        told = over_sections(plain.fmean(values), parts)
        assert told.mean == plain.fmean(values)
        hits += (told.low or 0) <= 1 <= (told.high or 0)
    assert 0.925 < hits / 1_000 < 0.97


def test_no_interval_from_too_few() -> None:
    assert over_seeds([3.0]).low is None
    assert over_seeds([3.0]).excludes_zero is None
    assert over_sections(3.0, [1.0, 2.0, None, 3.0, 4.0]).low is None
    assert over_sections(3.0, [1.0, 2.0, 3.0, 4.0, 5.0]).low is not None
    with pytest.raises(UserError):
        over_seeds([])


def test_a_difference_that_never_varies_is_real_unless_it_is_nothing() -> None:
    assert over_seeds([0.5, 0.5, 0.5]).excludes_zero is True
    assert over_seeds([-0.5, -0.5]).excludes_zero is True
    assert over_seeds([0.0, 0.0, 0.0]).excludes_zero is False


# ------------------------------------------------------------------------------------------------ ranks


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.sampled_from([1, -1]))
def test_rank_is_the_place_among_the_sorted(values: list[int], better: int) -> None:
    inorder = sorted(values, reverse=better > 0)
    assert ranks(values, better) == [inorder.index(each) + 1 for each in values]


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=6), st.data())
def test_agreement_by_hand(means: list[float], data: st.DataObject) -> None:
    drawn = st.lists(st.integers(0, 3), min_size=len(means), max_size=len(means))
    replicates = data.draw(st.lists(drawn, min_size=1, max_size=4))
    points = []
    for values in replicates:
        for one, two in combinations(range(len(means)), 2):
            tied = means[one] == means[two], values[one] == values[two]
            same = (means[one] < means[two]) == (values[one] < values[two])
            points.append(1.0 if all(tied) else 0.5 if any(tied) else 1.0 if same else 0.0)
    assert agreement(means, replicates) == pytest.approx(plain.fmean(points))


def test_agreement_at_its_ends() -> None:
    means = [1.0, 2.0, 3.0]
    assert agreement(means, [[5, 6, 7], [0, 1, 2]]) == 1.0
    assert agreement(means, [[7, 6, 5]]) == 0.0
    assert agreement(means, list(permutations([1.0, 2.0, 3.0]))) == 0.5
    assert agreement([1.0], [[1.0]]) is None
    assert agreement(means, []) is None


def test_jain() -> None:
    assert jain([2.0, 2.0, 2.0]) == pytest.approx(1.0)
    assert jain([6.0, 0.0, 0.0]) == pytest.approx(1 / 3)
    assert jain([4.0]) is None
    assert jain([0.0, 0.0]) is None
