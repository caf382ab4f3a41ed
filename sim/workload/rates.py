"""When requests arrive that wait for nobody: a renewal process, and how its rate changes with time.

The gaps of a renewal process are independent draws of one distribution.  A rate that changes, by the time of day or in
bursts, is a change of time: the arrivals of the steady process are put where the integral of the rate has reached their
time.  With exponential gaps that is exactly the Poisson process of that rate (Cinlar, "Introduction to Stochastic
Processes", 1975, 4.7); with others it is what time-dependent renewal processes are in simulation (Gerhardt and Nelson,
"Transforming renewal processes for simulation of nonstationary arrival processes", INFORMS J. on Computing 21, 2009).
Rates are steps, so their integral is inverted without iteration.
"""

from __future__ import annotations

from typing import Literal

import msgspec
import numpy as np

from stepwell.core.errors import UserError
from stepwell.core.types import NS_PER_S
from stepwell.sim.workload import draws
from stepwell.sim.workload.draws import Floats
from stepwell.sim.workload.mixes import MOST_REQUESTS, Whole, between

_GAPS, _BURSTS, _FIRST = 0, 4, 5  # gamma gaps take three purposes
_SINE_STEPS = 1440
_LATEST_NS = 2.0**61


class Daily(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rate that repeats every ``period_s``; on average it is the process's.

    Either ``weights``, relative rates of as many equal parts of the period (24: by the hour), or a sine of
    ``amplitude`` (0 … 1, a share of the mean rate) that peaks at ``peak_s``, in 1,440 steps a period (minutes of a
    day).
    """

    weights: tuple[float, ...] = ()
    amplitude: float = 0.0
    peak_s: float = 0.0
    period_s: float = 86_400.0


class Bursts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Two rates that take turns, one ``factor`` times the other; on average the rate is the process's.

    Bursts last ``on_s`` and the times between them ``off_s`` on average, exponentially distributed: a Markov-modulated
    process of two states, from its steady state on.
    """

    factor: float
    on_s: float
    off_s: float


class Arrivals(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``rate_per_s`` on average.  Gaps are exponential (``poisson``), all the same (``constant``), or ``gamma`` or
    ``weibull`` with coefficient of variation ``cv`` (above 1: clusters); ``daily`` and ``bursts`` change the rate."""

    rate_per_s: float
    kind: Literal["poisson", "gamma", "weibull", "constant"] = "poisson"
    cv: float = 1.0
    daily: Daily | None = None
    bursts: Bursts | None = None


def arrivals_ns(arrivals: Arrivals, seed: int, count: int) -> Whole:
    """The first ``count`` arrivals, ascending.  Raises ``UserError`` if they reach too far."""
    times = _steady(arrivals, seed, count)
    if arrivals.daily is None and arrivals.bursts is None:
        return times
    day = _Cycle(arrivals.daily or Daily(weights=(1.0,)))
    reached = times.astype(np.float64)
    if arrivals.bursts is not None:
        reached = _burst(arrivals.bursts, seed, reached, day)
    warped = np.maximum.accumulate(day.when(reached))
    if float(warped[-1]) >= _LATEST_NS:
        raise UserError("too low: arrivals would lie more than 73 years ahead", field="arrivals.rate_per_s")
    return np.asarray(np.rint(warped).astype(np.int64))


def check_arrivals(arrivals: Arrivals) -> None:
    between(arrivals.rate_per_s, 1e-6, 1e9, "arrivals.rate_per_s")
    between(arrivals.cv, 0.01, 100.0, "arrivals.cv")
    if arrivals.cv != 1.0 and arrivals.kind in ("poisson", "constant"):
        fixed = "is 1 for Poisson arrivals" if arrivals.kind == "poisson" else "is 0 for constant gaps"
        raise UserError(f"{fixed}; for another choose kind 'gamma' or 'weibull'", field="arrivals.cv")
    daily, bursts = arrivals.daily, arrivals.bursts
    if daily is not None:
        _check_daily(daily)
    if bursts is not None:
        between(bursts.factor, 1.0, 1e6, "arrivals.bursts.factor")
        between(bursts.on_s, 1e-3, 1e7, "arrivals.bursts.on_s")
        between(bursts.off_s, 1e-3, 1e7, "arrivals.bursts.off_s")


def _check_daily(daily: Daily) -> None:
    field = "arrivals.daily"
    between(daily.period_s, 1e-3, 1e9, f"{field}.period_s")
    between(daily.amplitude, 0.0, 1.0, f"{field}.amplitude")
    between(daily.peak_s, 0.0, daily.period_s, f"{field}.peak_s")
    if not daily.weights:
        if not daily.amplitude:
            raise UserError("needs weights, or the amplitude of a sine", field=field)
        return
    if daily.amplitude or daily.peak_s:
        raise UserError("has weights, so amplitude and peak_s must not be given", field=field)
    if len(daily.weights) > 100_000:
        raise UserError(f"must be at most 100000, not {len(daily.weights)}", field=f"{field}.weights")
    for index, each in enumerate(daily.weights):
        between(each, 0.0, 1e9, f"{field}.weights[{index}]")
    if not sum(daily.weights) >= 1e-9:
        raise UserError("must not all be 0", field=f"{field}.weights")


def _steady(arrivals: Arrivals, seed: int, count: int) -> Whole:
    mean_ns = NS_PER_S / arrivals.rate_per_s
    if arrivals.kind == "constant":
        gaps_ns = np.array([mean_ns])
    elif arrivals.kind == "poisson":
        gaps_ns = np.rint(draws.exponentials(draws.uniforms(seed, _GAPS, count)) * mean_ns)
    elif arrivals.kind == "gamma":
        shape = 1.0 / (arrivals.cv * arrivals.cv)
        gaps_ns = np.rint(draws.gammas(seed, _GAPS, count, shape) * (mean_ns / shape))
    else:
        gaps_ns = np.rint(draws.weibulls(draws.uniforms(seed, _GAPS, count), arrivals.cv) * mean_ns)
    if float(gaps_ns.max()) * count >= _LATEST_NS:
        raise UserError("too low: arrivals would lie more than 73 years ahead", field="arrivals.rate_per_s")
    if arrivals.kind == "constant":  # times are rounded, not gaps, so that the rate is exact
        return np.asarray(np.rint(np.arange(1, count + 1) * mean_ns).astype(np.int64))
    return np.cumsum(gaps_ns.astype(np.int64))


class _Cycle:
    """The integral of a rate that repeats, 1 on average, and its inverse; in ns."""

    def __init__(self, daily: Daily) -> None:
        if daily.weights:
            weights = np.array(daily.weights, dtype=np.float64)
        else:
            middles = (np.arange(_SINE_STEPS) + 0.5) / _SINE_STEPS - daily.peak_s / daily.period_s
            weights = 1.0 + daily.amplitude * draws.cosines(middles)
        ends = np.cumsum(weights)
        self._period = daily.period_s * NS_PER_S
        self._part = self._period / len(weights)
        self._rates = weights * (len(weights) / ends[-1])
        self._marks = np.concatenate([[0.0], ends / ends[-1] * self._period])

    def reached(self, t: Floats) -> Floats:
        cycles = np.floor(t / self._period) * self._period
        at = t - cycles
        part = np.minimum((at / self._part).astype(np.int64), len(self._rates) - 1)
        return np.asarray(cycles + self._marks[part] + self._rates[part] * (at - part * self._part))

    def when(self, y: Floats) -> Floats:
        cycles = np.floor(y / self._period) * self._period
        at = y - cycles
        part = np.minimum(np.searchsorted(self._marks[1:], at, side="right"), len(self._rates) - 1)
        rates = np.where(self._rates[part] > 0.0, self._rates[part], 1.0)
        return np.asarray(cycles + part * self._part + (at - self._marks[part]) / rates)


def _burst(bursts: Bursts, seed: int, y: Floats, day: _Cycle) -> Floats:
    """Where the integral without bursts stands when that with bursts is at ``y`` (ascending)."""
    on_ns, off_ns = bursts.on_s * NS_PER_S, bursts.off_s * NS_PER_S
    slow = (on_ns + off_ns) / (bursts.factor * on_ns + off_ns)
    begins_on = float(draws.uniforms(seed, _FIRST, 1)[0]) < on_ns / (on_ns + off_ns)
    segments = int(float(y[-1]) / (on_ns + off_ns)) * 2 + 64
    while True:
        if segments > MOST_REQUESTS:
            raise UserError("too short: there would be too many bursts", field="arrivals.bursts")
        on = (np.arange(segments) % 2 == 0) == begins_on
        lasts = draws.exponentials(draws.uniforms(seed, _BURSTS, segments)) * np.where(on, on_ns, off_ns)
        steady = np.concatenate([[0.0], day.reached(np.cumsum(lasts))])
        rates = np.where(on, bursts.factor * slow, slow)
        marks = np.concatenate([[0.0], np.cumsum(rates * np.diff(steady))])
        if marks[-1] > y[-1]:
            break
        segments *= 2
    found = np.searchsorted(marks, y, side="right") - 1
    return np.asarray(steady[found] + (y - marks[found]) / rates[found])
