"""Random draws that are the same bytes on every machine and under every version of numpy.

numpy promises the raw stream of a bit generator, but neither how ``Generator`` turns it into distributions, nor the
last digit of its ``log`` and ``exp`` (which differ between processors).  So only raw 64-bit words are taken from
``PCG64``; everything else is built here from ``+ - * /``, square root, ``frexp``, ``ldexp`` and rounding, which IEEE
754 rounds exactly, applied element by element in a fixed order.  The functions are accurate to about 1e-15 relative.

Each purpose has its own stream, keyed (seed, purpose, round), and request i uses element i of it: a longer workload
begins with the shorter one, and another rate changes nothing but times.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stepwell.core.errors import InvariantError

Floats = npt.NDArray[np.float64]

_LN2_HIGH = 6.93147180369123816490e-01
_LN2_LOW = 1.90821492927058770002e-10
_SQRT_HALF = 0.7071067811865476
_ROUNDS = 200


def uniforms(seed: int, purpose: int, count: int, round: int = 0) -> Floats:
    """``count`` numbers strictly between 0 and 1: the middles of 2^52 equal cells."""
    words = np.random.PCG64(np.random.SeedSequence([seed, purpose, round])).random_raw(count)
    return (np.asarray(words, dtype=np.uint64) >> np.uint64(12)).astype(np.float64) * 2.0**-52 + 2.0**-53


def log(x: Floats) -> Floats:
    """Natural logarithm of positive finite numbers."""
    mantissa, exponent = np.frexp(x)
    low = mantissa < _SQRT_HALF
    mantissa = np.where(low, mantissa * 2.0, mantissa)
    powers = exponent.astype(np.float64) - low
    s = (mantissa - 1.0) / (mantissa + 1.0)
    square = s * s
    series = np.zeros_like(s)
    for odd in range(23, 0, -2):  # 2 (s + s³/3 + s⁵/5 + …), |s| < 0.172
        series = series * square + 1.0 / odd
    return powers * _LN2_HIGH + (2.0 * s * series + powers * _LN2_LOW)


def exp(x: Floats) -> Floats:
    """e to the power of ``x``; below -700 it is that of -700, above 700 that of 700."""
    x = np.minimum(np.maximum(x, -700.0), 700.0)
    powers = np.rint(x * 1.4426950408889634)
    rest = (x - powers * _LN2_HIGH) - powers * _LN2_LOW
    series = np.ones_like(rest)
    for divisor in range(16, 0, -1):
        series = 1.0 + series * rest / divisor
    return np.asarray(np.ldexp(series, powers.astype(np.intc)), dtype=np.float64)


def cosines(turns: Floats) -> Floats:
    """Cosine of so many whole turns."""
    angle = (turns - np.rint(turns)) * 6.283185307179586
    square = angle * angle
    series = np.ones_like(angle)
    for last in range(32, 0, -2):  # 1 - x²/(1·2) (1 - x²/(3·4) (…)), |x| <= pi
        series = 1.0 - series * square / (last * (last - 1))
    return series


def log_gamma(x: float) -> float:
    """Logarithm of the gamma function of a positive number, by Stirling's series from 20 on."""
    below = 1.0
    while x < 20.0:
        below *= x
        x += 1.0
    logs = log(np.array([x, below, 6.283185307179586]))
    square = 1.0 / (x * x)
    series = ((-square / 1680.0 + 1.0 / 1260.0) * square - 1.0 / 360.0) * square + 1.0 / 12.0
    return float((x - 0.5) * logs[0] - x + 0.5 * logs[2] + series / x - logs[1])


def _polynomial(x: Floats, coefficients: tuple[float, ...]) -> Floats:
    value = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value


# Wichura, "Algorithm AS 241: the percentage points of the normal distribution", 1988 (PPND16); highest power first.
_CENTRE = (
    (2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457,
     13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.387132872796366608),
    (5226.495278852854561, 28729.085735721942674, 39307.89580009271061, 21213.794301586595867,
     5394.1960214247511077, 687.1870074920579083, 42.313330701600911252, 1.0),
)  # fmt: skip
_NEAR = (
    (7.7454501427834140764e-4, 0.0227238449892691845833, 0.24178072517745061177, 1.27045825245236838258,
     3.64784832476320460504, 5.7694972214606914055, 4.6303378461565452959, 1.42343711074968357734),
    (1.05075007164441684324e-9, 5.475938084995344946e-4, 0.0151986665636164571966, 0.14810397642748007459,
     0.68976733498510000455, 1.6763848301838038494, 2.05319162663775882187, 1.0),
)  # fmt: skip
_FAR = (
    (2.01033439929228813265e-7, 2.71155556874348757815e-5, 0.0012426609473880784386, 0.026532189526576123093,
     0.29656057182850489123, 1.7848265399172913358, 5.4637849111641143699, 6.6579046435011037772),
    (2.04426310338993978564e-15, 1.4215117583164458887e-7, 1.8463183175100546818e-5, 7.868691311456132591e-4,
     0.0148753612908506148525, 0.13692988092273580531, 0.59983220655588793769, 1.0),
)  # fmt: skip


def normals(u: Floats) -> Floats:
    """The standard normal's inverse distribution function of numbers strictly between 0 and 1."""
    q = u - 0.5
    square = 0.180625 - q * q
    centre = q * _polynomial(square, _CENTRE[0]) / _polynomial(square, _CENTRE[1])
    tail = np.sqrt(-log(np.minimum(u, 1.0 - u)))
    near = _polynomial(tail - 1.6, _NEAR[0]) / _polynomial(tail - 1.6, _NEAR[1])
    far = _polynomial(tail - 5.0, _FAR[0]) / _polynomial(tail - 5.0, _FAR[1])
    outer = np.where(tail <= 5.0, near, far)
    return np.where(np.abs(q) <= 0.425, centre, np.where(q < 0.0, -outer, outer))


def exponentials(u: Floats) -> Floats:
    """Exponential with mean 1."""
    return -log(u)


def weibulls(u: Floats, cv: float) -> Floats:
    """Weibull with mean 1 and coefficient of variation ``cv`` (0.01 … 100), by inversion."""
    shape = weibull_shape(cv)
    return exp(log(-log(u)) / shape - log_gamma(1.0 + 1.0 / shape))


def weibull_shape(cv: float) -> float:
    """The shape with that coefficient of variation, which falls as the shape rises: by bisection."""
    wanted = float(log(np.array([1.0 + cv * cv]))[0])
    low, high = 0.1, 250.0
    for _ in range(100):
        middle = (low + high) / 2.0
        found = log_gamma(1.0 + 2.0 / middle) - 2.0 * log_gamma(1.0 + 1.0 / middle)
        low, high = (middle, high) if found > wanted else (low, middle)
    return (low + high) / 2.0


def gammas(seed: int, purpose: int, count: int, shape: float) -> Floats:
    """Gamma with mean ``shape`` and scale 1, by Marsaglia and Tsang's rejection.

    Uses the purposes ``purpose`` to ``purpose + 2``; what is rejected takes the same element of the next round.
    """
    boosted = shape if shape >= 1.0 else shape + 1.0
    d = boosted - 1.0 / 3.0
    c = 1.0 / float(np.sqrt(9.0 * d))
    drawn = np.zeros(count, dtype=np.float64)
    pending = np.arange(count)
    for round in range(_ROUNDS):
        x = normals(uniforms(seed, purpose, count, round)[pending])
        u = uniforms(seed, purpose + 1, count, round)[pending]
        v = 1.0 + c * x
        v = v * v * v
        positive = v > 0.0
        logs = log(np.where(positive, v, 1.0))
        accepted = positive & (log(u) < 0.5 * x * x + d - d * v + d * logs)
        drawn[pending[accepted]] = d * v[accepted]
        pending = pending[~accepted]
        if not len(pending):
            break
    else:
        raise InvariantError(f"{len(pending)} gamma draws were rejected {_ROUNDS} times")
    if shape < 1.0:  # gamma(a) = gamma(a + 1) · u^(1/a)
        drawn = drawn * exp(log(uniforms(seed, purpose + 2, count)) / shape)
    return drawn
