"""The arithmetic of draws: close to the true exponentials, and whole numbers wherever it is added up."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.backends.draws import (
    POLYNOMIAL,
    UNIT,
    WHOLE_SHARE,
    least_weight,
    octaves,
    reach,
    share,
    threshold,
    uniform,
    weights,
)

ONE = 1 << UNIT


def made() -> list[float]:
    """The polynomial: 2 ** -f at f = 0 exactly, and at the Chebyshev nodes of its other six terms."""
    node = (np.cos((2 * np.arange(6) + 1) * np.pi / 12) + 1) / 2
    rest = np.polyfit(node, (np.exp2(-node) - 1) / node, 5)
    return [float(np.float32(each)) for each in rest] + [1.0]


def test_the_polynomial_is_the_one_that_is_made_here() -> None:
    assert np.allclose(POLYNOMIAL, made(), rtol=2e-7, atol=0)
    assert all(float(np.float32(each)) == each for each in POLYNOMIAL), "as constants they are float32"


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 1 << 30), st.sampled_from([0.01, 0.3, 0.7, 1.0, 1.7, 100.0]))
def test_weights_are_close_to_exponentials(seed: int, temperature: float) -> None:
    """Within 2**-17 of themselves and one unit, as the module says."""
    scores = np.random.default_rng(seed).normal(0, 6, 300).astype(np.float32)
    found = weights(scores, scores.max(), octaves(temperature))
    true = np.exp((scores.astype(np.float64) - float(scores.max())) / temperature) * ONE
    assert (np.abs(found - true) <= true * 2.0**-17 + 1).all()
    assert found[scores.argmax()] == ONE


def test_the_ends_of_the_scale() -> None:
    scores = np.array([3.0, 3.0, -np.inf, -1e30, 2.9999998], np.float32)
    for cold in (1e-5, 1e-4):
        with np.errstate(over="ignore"):
            assert weights(scores, scores.max(), octaves(cold))[:4].tolist() == [ONE, ONE, 0, 0]
    assert weights(scores, scores.max(), octaves(1e300)).tolist() == [ONE, ONE, 0, ONE, ONE]
    nothing = np.full(3, -np.inf, np.float32)
    assert weights(nothing, nothing.max(), octaves(1.0)).tolist() == [ONE] * 3


@given(st.integers(-(1 << 63), (1 << 64) - 1), st.integers(0, 1 << 31), st.integers(1, 1 << 62))
def test_a_draw_is_below_the_total_and_is_the_uniform_one(seed: int, position: int, total: int) -> None:
    drawn = threshold(seed, position, total)
    assert 0 <= drawn < total
    assert abs(drawn / total - uniform(seed, position)) <= 1 / total + 2.0**-52


@given(st.floats(0, 1), st.integers(1, 1 << 62))
def test_shares_of_a_mass(top_p: float, mass: int) -> None:
    least = reach(share(top_p), mass)
    assert 1 <= least <= mass
    assert abs(least - top_p * mass) <= 1 + mass * 2.0**-50
    assert reach(WHOLE_SHARE, mass) == mass == reach(share(1.0), mass)
    assert reach(share(0.5), 2 * ONE) == ONE, "reached exactly, and no further"


def test_min_p_of_one_leaves_the_best() -> None:
    assert least_weight(1.0) == ONE
    assert least_weight(0.0) == 0
