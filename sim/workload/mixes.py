"""What every generator draws alike: classes and tenants by share, token counts, delays; and the checks of settings.

Each purpose has a stream of its own (see ``draws``), and a thing of number i uses element i of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from stepwell.core.errors import UserError
from stepwell.core.types import NS_PER_S
from stepwell.sim.workload import draws
from stepwell.sim.workload.request import TraceRequest

Whole = npt.NDArray[np.int64]

MOST_REQUESTS = 100_000_000
LONGEST_DELAY_S = 1e7


class Lengths(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Lognormal counts.  ``mean`` is that of the lognormal before it is rounded and clipped to ``min`` … ``max``."""

    mean: float
    sigma: float = 0.0
    min: int = 1
    max: int = 1_000_000


class Delay(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A time that somebody takes, ``mean_s`` on average: exponential, lognormal with ``sigma``, or always the same."""

    mean_s: float
    kind: Literal["exponential", "lognormal", "constant"] = "exponential"
    sigma: float = 0.0


class TenantMix(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tenant and its share (shares need not sum to 1)."""

    name: str = "default"
    share: float = 1.0


class Mix(Protocol):
    """A class or a tenant of any generator."""

    @property
    def name(self) -> str: ...

    @property
    def share(self) -> float: ...


def choose(seed: int, purpose: int, count: int, mixes: Sequence[Mix]) -> Whole:
    """An index into ``mixes`` for each of ``count``, by share; the bounds are exact sums, so no order of addition
    matters."""
    if len(mixes) == 1:
        return np.zeros(count, dtype=np.int64)
    total = sum(Fraction(each.share) for each in mixes)
    reached, bounds = Fraction(0), []
    for each in mixes[:-1]:
        reached += Fraction(each.share)
        bounds.append(float(reached / total))
    found = np.searchsorted(np.array(bounds), draws.uniforms(seed, purpose, count), side="right")
    return np.asarray(found, dtype=np.int64)


def counts(seed: int, purpose: int, klass: Whole, lengths: Sequence[Lengths]) -> Whole:
    """A count for each element of ``klass``, which says whose lengths it has."""
    means = np.array([each.mean for each in lengths], dtype=np.float64)
    sigmas = np.array([each.sigma for each in lengths], dtype=np.float64)
    # The mean of a lognormal is exp(mu + sigma² / 2).
    mus = draws.log(means) - sigmas * sigmas / 2.0
    normal = draws.normals(draws.uniforms(seed, purpose, len(klass)))
    values = np.rint(draws.exp(mus[klass] + sigmas[klass] * normal))
    least = np.array([each.min for each in lengths], dtype=np.float64)
    most = np.array([each.max for each in lengths], dtype=np.float64)
    return np.asarray(np.minimum(np.maximum(values, least[klass]), most[klass]).astype(np.int64))


def delays_ns(seed: int, purpose: int, klass: Whole, delays: Sequence[Delay]) -> Whole:
    """A delay for each element of ``klass``, which says whose it is; at most 2^55 ns (417 days)."""
    u = draws.uniforms(seed, purpose, len(klass))
    values = np.ones(len(klass), dtype=np.float64)
    for index, each in enumerate(delays):
        own = klass == index
        if each.kind == "exponential":
            values[own] = draws.exponentials(u[own])
        elif each.kind == "lognormal":
            values[own] = draws.exp(each.sigma * draws.normals(u[own]) - each.sigma * each.sigma / 2.0)
    means_ns = np.array([each.mean_s * NS_PER_S for each in delays], dtype=np.float64)
    return np.asarray(np.rint(np.minimum(values * means_ns[klass], 2.0**55)).astype(np.int64))


def check_reach(requests: Sequence[TraceRequest], field: str) -> None:
    """Raises ``UserError`` if thinking puts somebody more than 73 years ahead: a slip of the unit."""
    if max((each.arrival_ns for each in requests), default=0) >= 1 << 61:
        raise UserError("is too much: requests would arrive more than 73 years ahead", field=field)


# ------------------------------------------------------------------------------------------------ checks


def between(value: float, least: float, most: float, field: str) -> None:
    """Raises ``UserError`` unless ``value`` is a number from ``least`` to ``most``."""
    if not (math.isfinite(value) and least <= value <= most):
        raise UserError(f"must be between {least:g} and {most:g}, not {value!r}", field=field)


def check_seed(seed: int) -> None:
    if not 0 <= seed < 1 << 64:
        raise UserError(f"must be between 0 and 2^64 - 1, not {seed}", field="seed")


def check_mixes(classes: Sequence[Mix], tenants: Sequence[Mix]) -> None:
    """At least one of each, with shares and names of their own."""
    given: Mapping[str, Sequence[Mix]] = {"classes": classes, "tenants": tenants}
    for field, mixes in given.items():
        if not mixes:
            raise UserError("must name at least one", field=field)
        for index, each in enumerate(mixes):
            between(each.share, 1e-9, 1e9, f"{field}[{index}].share")
        names = [each.name for each in mixes]
        if len(set(names)) < len(names):
            raise UserError(f"names must differ: {', '.join(names)}", field=field)


def check_lengths(lengths: Lengths, field: str) -> None:
    between(lengths.mean, 1.0, 1e7, f"{field}.mean")
    between(lengths.sigma, 0.0, 5.0, f"{field}.sigma")
    if not 1 <= lengths.min <= lengths.max < 1 << 31:
        raise UserError(f"min {lengths.min} and max {lengths.max} must satisfy 1 ≤ min ≤ max", field=field)


def check_delay(delay: Delay, field: str) -> None:
    between(delay.mean_s, 0.0, LONGEST_DELAY_S, f"{field}.mean_s")
    between(delay.sigma, 0.0, 5.0, f"{field}.sigma")
    if delay.sigma and delay.kind != "lognormal":
        raise UserError(f"is of lognormal delays, and these are {delay.kind}", field=f"{field}.sigma")
