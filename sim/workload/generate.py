"""Seeded synthetic workloads: arrivals, lengths, classes and tenants from a small frozen configuration.

The same configuration gives the same bytes on every machine (see ``draws``).  Times are whole nanoseconds, lengths
whole tokens (the lognormal value rounded to nearest, then clipped).
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from stepwell.core.errors import UserError
from stepwell.core.types import NS_PER_S
from stepwell.sim.workload import draws
from stepwell.sim.workload.request import TraceRequest, Workload
from stepwell.sim.workload.trace import read_trace
from stepwell.sim.workload.transform import scale_rate

_GAPS, _CLASS, _TENANT, _PROMPT, _OUTPUT = 0, 10, 20, 30, 40
MOST_REQUESTS = 100_000_000


class Lengths(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Lognormal token counts.  ``mean`` is that of the lognormal before it is clipped to ``min`` … ``max``."""

    mean: float
    sigma: float
    min: int = 1
    max: int = 1_000_000


class Arrivals(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Gaps between arrivals: exponential, or gamma with coefficient of variation ``cv`` (above 1: bursts)."""

    rate_per_s: float
    kind: Literal["poisson", "gamma"] = "poisson"
    cv: float = 1.0


class ClassMix(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A class, its share of the requests (shares need not sum to 1), its lengths and its programs.

    ``calls`` requests of the class make one program; ``abreast`` programs take turns, so the calls of one are spread
    over the arrivals of so many.  0 calls: no request belongs to any.
    """

    prompt: Lengths
    output: Lengths
    name: str = "chat"
    share: float = 1.0
    calls: int = 0
    abreast: int = 1


class TenantMix(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str = "default"
    share: float = 1.0


class Synthetic(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole synthetic workload.  Class and tenant of a request are drawn independently."""

    arrivals: Arrivals
    classes: tuple[ClassMix, ...]
    tenants: tuple[TenantMix, ...] = (TenantMix(),)
    count: int = 10_000
    seed: int = 0
    name: str = "synthetic"


def generate(options: Synthetic) -> Workload:
    """The workload that ``options`` describe.  Raises ``UserError`` if they describe none."""
    _check(options)
    count, seed = options.count, options.seed
    klass = _choose(seed, _CLASS, count, [each.share for each in options.classes])
    tenant = _choose(seed, _TENANT, count, [each.share for each in options.tenants])
    prompt = _lengths(seed, _PROMPT, klass, [each.prompt for each in options.classes])
    output = _lengths(seed, _OUTPUT, klass, [each.output for each in options.classes])
    classes = [each.name for each in options.classes]
    tenants = [each.name for each in options.tenants]
    programs = [_programs(each) for each in options.classes]
    turns = [itertools.count() for _ in options.classes]
    no_keys: list[int] = []  # one for all: a million of them would take 56 MB
    requests = [
        TraceRequest(at, tokens, generated, classes[k], tenants[t], no_keys, program=programs[k](next(turns[k])))
        for at, tokens, generated, k, t in zip(
            _arrivals_ns(options).tolist(),
            prompt.tolist(),
            output.tolist(),
            klass.tolist(),
            tenant.tolist(),
            strict=True,
        )
    ]
    return Workload(options.name, requests, notes=[f"generated with seed {seed}"])


def _programs(mix: ClassMix) -> Callable[[int], str]:
    """The program of a class's n-th request."""
    if not mix.calls:
        return lambda turn: ""
    cohort = mix.calls * mix.abreast
    return lambda turn: f"{mix.name}-{turn // cohort * mix.abreast + turn % mix.abreast}"


def common_options(count: int = 10_000, load: float = 0.9) -> Synthetic:
    """What simulators are compared on: Poisson, 25.6 requests/s at load 0.9 (of the reference step time's capacity)."""
    shape = ClassMix(prompt=Lengths(495.0, 0.8, 4, 3000), output=Lengths(199.0, 0.7, 2, 1000))
    return Synthetic(Arrivals(load / 0.9 * 25.6), (shape,), count=count, seed=7, name=f"common-{count}-load-{load:g}")


def common_workload(count: int = 10_000, load: float = 0.9) -> Workload:
    return generate(common_options(count, load))


def read_unit_rate(path: str | os.PathLike[str], load: float = 0.9) -> Workload:
    """A file in the ``simple`` format that arrives at one request/s (``synthetic_lognormal_10k.csv``), at ``load``."""
    return scale_rate(read_trace(path, format="simple"), load / 0.9 * 25.6)


def _arrivals_ns(options: Synthetic) -> npt.NDArray[np.int64]:
    arrivals = options.arrivals
    if arrivals.kind == "poisson":
        gaps = draws.exponentials(draws.uniforms(options.seed, _GAPS, options.count))
        mean_ns = NS_PER_S / arrivals.rate_per_s
    else:
        shape = 1.0 / (arrivals.cv * arrivals.cv)
        gaps = draws.gammas(options.seed, _GAPS, options.count, shape)
        mean_ns = NS_PER_S / arrivals.rate_per_s / shape
    gaps_ns = np.rint(gaps * mean_ns)
    if float(gaps_ns.max()) * options.count >= 2.0**61:
        raise UserError("too low: arrivals would lie more than 73 years ahead", field="arrivals.rate_per_s")
    return np.cumsum(gaps_ns.astype(np.int64))


def _choose(seed: int, purpose: int, count: int, shares: Sequence[float]) -> npt.NDArray[np.int64]:
    """An index for each request, by share; the bounds are exact sums, so no order of addition matters."""
    if len(shares) == 1:
        return np.zeros(count, dtype=np.int64)
    total = sum(map(Fraction, shares))
    reached, bounds = Fraction(0), []
    for share in shares[:-1]:
        reached += Fraction(share)
        bounds.append(float(reached / total))
    found = np.searchsorted(np.array(bounds), draws.uniforms(seed, purpose, count), side="right")
    return np.asarray(found, dtype=np.int64)


def _lengths(
    seed: int, purpose: int, klass: npt.NDArray[np.int64], lengths: Sequence[Lengths]
) -> npt.NDArray[np.int64]:
    means = np.array([each.mean for each in lengths], dtype=np.float64)
    sigmas = np.array([each.sigma for each in lengths], dtype=np.float64)
    # The mean of a lognormal is exp(mu + sigma² / 2).
    mus = draws.log(means) - sigmas * sigmas / 2.0
    normal = draws.normals(draws.uniforms(seed, purpose, len(klass)))
    values = np.rint(draws.exp(mus[klass] + sigmas[klass] * normal))
    least = np.array([each.min for each in lengths], dtype=np.float64)
    most = np.array([each.max for each in lengths], dtype=np.float64)
    return np.minimum(np.maximum(values, least[klass]), most[klass]).astype(np.int64)


def _check(options: Synthetic) -> None:
    if not 1 <= options.count <= MOST_REQUESTS:
        raise UserError(f"must be between 1 and {MOST_REQUESTS}, not {options.count}", field="count")
    if not 0 <= options.seed < 1 << 64:
        raise UserError(f"must be between 0 and 2^64 - 1, not {options.seed}", field="seed")
    _between(options.arrivals.rate_per_s, 1e-6, 1e9, "arrivals.rate_per_s")
    _between(options.arrivals.cv, 0.01, 100.0, "arrivals.cv")
    if options.arrivals.kind == "poisson" and options.arrivals.cv != 1.0:
        raise UserError("is 1 for Poisson arrivals; for another choose kind 'gamma'", field="arrivals.cv")
    mixes: dict[str, Sequence[ClassMix | TenantMix]] = {"classes": options.classes, "tenants": options.tenants}
    for field, mix in mixes.items():
        if not mix:
            raise UserError("must name at least one", field=field)
        for index, each in enumerate(mix):
            _between(each.share, 1e-9, 1e9, f"{field}[{index}].share")
        names = [each.name for each in mix]
        if len(set(names)) < len(names):
            raise UserError(f"names must differ: {', '.join(names)}", field=field)
    for index, each in enumerate(options.classes):
        _between(each.calls, 0, MOST_REQUESTS, f"classes[{index}].calls")
        _between(each.abreast, 1, MOST_REQUESTS, f"classes[{index}].abreast")
        for name, lengths in (("prompt", each.prompt), ("output", each.output)):
            _check_lengths(lengths, f"classes[{index}].{name}")


def _check_lengths(lengths: Lengths, field: str) -> None:
    _between(lengths.mean, 1.0, 1e7, f"{field}.mean")
    _between(lengths.sigma, 0.0, 5.0, f"{field}.sigma")
    if not 1 <= lengths.min <= lengths.max < 1 << 31:
        raise UserError(f"min {lengths.min} and max {lengths.max} must satisfy 1 ≤ min ≤ max", field=field)


def _between(value: float, least: float, most: float, field: str) -> None:
    if not (math.isfinite(value) and least <= value <= most):
        raise UserError(f"must be between {least:g} and {most:g}, not {value!r}", field=field)
