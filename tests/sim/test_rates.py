"""Arrivals: the distributions and rates that were asked for, the same bytes everywhere, and exact changes of time."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.core.errors import UserError
from stepwell.core.types import NS_PER_S
from stepwell.sim.workload import draws
from stepwell.sim.workload.rates import Arrivals, Bursts, Daily, arrivals_ns, check_arrivals
from stepwell.sim.workload.request import rate_profile

HOURS = (2, 1, 1, 1, 1, 2, 4, 8, 12, 15, 16, 15, 13, 16, 17, 16, 14, 11, 8, 7, 6, 5, 4, 3)


def test_functions_against_the_library_of_c() -> None:
    turns = np.linspace(-3.0, 3.0, 4_001)
    for x, cosine in zip(turns.tolist(), draws.cosines(turns).tolist(), strict=True):
        assert cosine == pytest.approx(math.cos(2 * math.pi * x), abs=3e-15)
    for x in (1e-3, 0.1, 0.5, 1.0, 1.5, 2.0, 3.25, 7.0, 19.99, 20.0, 171.0):
        assert draws.log_gamma(x) == pytest.approx(math.lgamma(x), rel=1e-13, abs=1e-13)


@pytest.mark.parametrize("cv", [0.01, 0.3, 1.0, 2.5, 100.0])
def test_the_shape_of_a_weibull_gives_its_cv(cv: float) -> None:
    shape = draws.weibull_shape(cv)
    first, second = math.lgamma(1 + 1 / shape), math.lgamma(1 + 2 / shape)
    assert math.sqrt(math.expm1(second - 2 * first)) == pytest.approx(cv, rel=1e-9)


@pytest.mark.parametrize("cv", [0.3, 1.0, 2.0])
def test_weibull_gaps_have_rate_cv_and_distribution(cv: float) -> None:
    count = 50_000
    times = arrivals_ns(Arrivals(10.0, "weibull", cv), 3, count)
    profile = rate_profile(times.tolist())
    assert profile.gap_cv == pytest.approx(cv, rel=0.03)
    assert profile.rate_per_s == pytest.approx(10.0, rel=4 * cv / math.sqrt(count))
    shape = draws.weibull_shape(cv)
    scale_ns = NS_PER_S / 10.0 / math.gamma(1 + 1 / shape)
    ordered = sorted(np.diff(times, prepend=0).tolist())
    found = (1 - math.exp(-((gap / scale_ns) ** shape)) for gap in ordered)
    distance = max(abs(each - (rank + 0.5) / count) for rank, each in enumerate(found))
    assert distance < 1.63 / math.sqrt(count)  # Kolmogorov and Smirnov, 1 %


def test_constant_gaps_have_exactly_the_rate() -> None:
    times = arrivals_ns(Arrivals(3.0, "constant"), 9, 30_000).tolist()
    assert times == [round(Fraction(index * NS_PER_S, 3)) for index in range(1, 30_001)]


@settings(max_examples=60, deadline=None)
@given(
    weights=st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any),
    period_s=st.integers(1, 50),
    rate=st.integers(1, 20),
)
def test_the_integral_of_the_rate_counts_the_arrivals(weights: list[int], period_s: int, rate: int) -> None:
    """With constant gaps of the steady process, the k-th arrival is where exactly k are due: in fractions."""
    daily = Daily(weights=tuple(map(float, weights)), period_s=float(period_s))
    times = arrivals_ns(Arrivals(float(rate), "constant", daily=daily), 1, 200).tolist()
    part = Fraction(period_s, len(weights))
    for count, at_ns in enumerate(times, 1):
        whole, within = divmod(Fraction(at_ns, NS_PER_S), period_s)
        parts, rest = divmod(within, part)
        due = sum(weights[:parts]) * part + (weights[parts] * rest if rest else 0)
        reached = rate * (whole * period_s + due * len(weights) / sum(weights))
        assert abs(reached - count) < Fraction(rate * 100, NS_PER_S)


def test_poisson_arrivals_of_a_day_have_the_rate_of_each_hour() -> None:
    daily = Daily(weights=tuple(map(float, HOURS)))
    count = 200_000
    times = arrivals_ns(Arrivals(1.0, daily=daily), 11, count)
    hours = (times // (3600 * NS_PER_S)) % 24
    days = times[-1] / (86_400 * NS_PER_S)
    full = times < int(days) * 86_400 * NS_PER_S
    found = np.bincount(hours[full], minlength=24)
    expected = np.array(HOURS) / sum(HOURS) * 86_400 * int(days)
    assert int(days) == 2
    assert float(((found - expected) ** 2 / expected).sum()) < 49.7  # chi-squared of 24, 0.16 %: the seed is fixed


@pytest.mark.parametrize(("amplitude", "peak_s"), [(1.0, 0.0), (0.6, 250.0)])
def test_a_sine_has_the_integral_of_a_sine(amplitude: float, peak_s: float) -> None:
    period, count = 1_000.0, 120_000
    daily = Daily(amplitude=amplitude, peak_s=peak_s, period_s=period)
    times = arrivals_ns(Arrivals(count / period, "constant", daily=daily), 1, count) / NS_PER_S

    def due(t: float) -> float:
        swing = math.sin(2 * math.pi * (t - peak_s) / period) + math.sin(2 * math.pi * peak_s / period)
        return t / period + amplitude / (2 * math.pi) * swing

    for t in np.linspace(0, period, 41).tolist():
        assert float((times <= t).sum()) / count == pytest.approx(due(t), abs=2e-5)


def test_bursts_have_the_rate_and_the_dispersion_of_their_theory() -> None:
    """Variance over mean of counts in long windows (Fischer and Meier-Hellstern, "The MMPP cookbook", 1993, (16))."""
    bursts = Bursts(factor=9.0, on_s=1.0, off_s=9.0)
    times = arrivals_ns(Arrivals(10.0, bursts=bursts), 5, 400_000)
    assert rate_profile(times.tolist()).rate_per_s == pytest.approx(10.0, rel=0.05)
    slow = 10.0 * 10.0 / (9.0 + 9.0)
    fast, leave_on, leave_off = 9.0 * slow, 1.0, 1.0 / 9.0
    mean = fast * leave_off + slow * leave_on
    theory = 1 + 2 * (fast - slow) ** 2 * leave_on * leave_off / ((leave_on + leave_off) ** 2 * mean)
    windows = np.bincount(times // (100 * NS_PER_S))[:-1]
    assert len(windows) > 350
    assert float(np.var(windows) / np.mean(windows)) == pytest.approx(theory, rel=0.2)


def test_bursts_go_with_the_hours() -> None:
    daily = Daily(weights=(1.0, 3.0, 0.0, 4.0), period_s=400.0)
    times = arrivals_ns(Arrivals(5.0, bursts=Bursts(5.0, 2.0, 6.0), daily=daily), 2, 100_000)
    found = np.bincount(times // (100 * NS_PER_S) % 4, minlength=4)
    assert (found / found.sum()).tolist() == pytest.approx([1 / 8, 3 / 8, 0.0, 4 / 8], abs=0.02)


CHANGES = st.sampled_from(
    [
        {},
        {"daily": Daily(weights=(1.0, 0.0, 2.5), period_s=30.0)},
        {"daily": Daily(amplitude=0.7, peak_s=3.0, period_s=20.0)},
        {"bursts": Bursts(8.0, 0.5, 3.0)},
        {"bursts": Bursts(3.0, 1.0, 1.0), "daily": Daily(amplitude=1.0, period_s=7.0)},
    ]
)


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from([("poisson", 1.0), ("constant", 1.0), ("gamma", 3.0), ("weibull", 0.5)]),
    changes=CHANGES,
    seed=st.integers(0, 2**64 - 1),
    counts=st.tuples(st.integers(1, 300), st.integers(0, 700)),
)
def test_more_arrivals_begin_with_fewer(
    kind: tuple[str, float], changes: dict[str, object], seed: int, counts: tuple[int, int]
) -> None:
    arrivals = Arrivals(10.0, *kind, **changes)  # type: ignore[arg-type]
    check_arrivals(arrivals)
    few, more = (arrivals_ns(arrivals, seed, count).tolist() for count in (counts[0], sum(counts)))
    assert more[: len(few)] == few
    assert more == sorted(more)
    assert more[0] >= 0


@pytest.mark.parametrize(
    ("arrivals", "field"),
    [
        (Arrivals(1.0, "constant", 0.5), "arrivals.cv"),
        (Arrivals(1.0, "weibull", 1000.0), "arrivals.cv"),
        (Arrivals(1.0, daily=Daily()), "arrivals.daily"),
        (Arrivals(1.0, daily=Daily(weights=(1.0,), amplitude=0.5)), "arrivals.daily"),
        (Arrivals(1.0, daily=Daily(weights=(1.0, -1.0))), r"arrivals.daily.weights\[1\]"),
        (Arrivals(1.0, daily=Daily(weights=(0.0, 0.0))), "arrivals.daily.weights"),
        (Arrivals(1.0, daily=Daily(amplitude=1.5)), "arrivals.daily.amplitude"),
        (Arrivals(1.0, daily=Daily(amplitude=0.5, peak_s=1e5)), "arrivals.daily.peak_s"),
        (Arrivals(1.0, daily=Daily(amplitude=0.5, period_s=0.0)), "arrivals.daily.period_s"),
        (Arrivals(1.0, bursts=Bursts(0.5, 1.0, 1.0)), "arrivals.bursts.factor"),
        (Arrivals(1.0, bursts=Bursts(2.0, 0.0, 1.0)), "arrivals.bursts.on_s"),
        (Arrivals(1.0, bursts=Bursts(2.0, 1.0, math.inf)), "arrivals.bursts.off_s"),
    ],
)
def test_arrivals_that_cannot_be_are_refused(arrivals: Arrivals, field: str) -> None:
    with pytest.raises(UserError, match=f"^{field}: "):
        check_arrivals(arrivals)


def test_bursts_without_number_and_arrivals_without_end_are_refused() -> None:
    with pytest.raises(UserError, match=r"^arrivals.bursts: too short"):
        arrivals_ns(Arrivals(1e-3, bursts=Bursts(2.0, 1e-3, 1e-3)), 0, 500)
    with pytest.raises(UserError, match=r"^arrivals.rate_per_s: too low"):
        arrivals_ns(Arrivals(1e-6, daily=Daily(amplitude=0.1)), 0, 10_000)
