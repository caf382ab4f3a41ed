"""Seeded synthetic workloads: arrivals, lengths, classes and tenants from a small frozen configuration.

The same configuration gives the same bytes on every machine (see ``draws``).  Times are whole nanoseconds, lengths
whole tokens (the lognormal value rounded to nearest, then clipped).
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable

import msgspec

from stepwell.sim.workload.mixes import (
    MOST_REQUESTS,
    Lengths,
    TenantMix,
    between,
    check_lengths,
    check_mixes,
    check_seed,
    choose,
    counts,
)
from stepwell.sim.workload.rates import Arrivals, arrivals_ns, check_arrivals
from stepwell.sim.workload.request import TraceRequest, Workload
from stepwell.sim.workload.trace import read_trace
from stepwell.sim.workload.transform import scale_rate

_CLASS, _TENANT, _PROMPT, _OUTPUT = 10, 20, 30, 40


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
    check_synthetic(options)
    count, seed = options.count, options.seed
    klass = choose(seed, _CLASS, count, options.classes)
    tenant = choose(seed, _TENANT, count, options.tenants)
    prompt = counts(seed, _PROMPT, klass, [each.prompt for each in options.classes])
    output = counts(seed, _OUTPUT, klass, [each.output for each in options.classes])
    classes = [each.name for each in options.classes]
    tenants = [each.name for each in options.tenants]
    programs = [_programs(each) for each in options.classes]
    turns = [itertools.count() for _ in options.classes]
    no_keys: list[int] = []  # one for all: a million of them would take 56 MB
    requests = [
        TraceRequest(at, tokens, generated, classes[k], tenants[t], no_keys, program=programs[k](next(turns[k])))
        for at, tokens, generated, k, t in zip(
            arrivals_ns(options.arrivals, seed, count).tolist(),
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


def check_synthetic(options: Synthetic) -> None:
    """Raises ``UserError`` for options of which no workload is made."""
    between(options.count, 1, MOST_REQUESTS, "count")
    check_seed(options.seed)
    check_arrivals(options.arrivals)
    check_mixes(options.classes, options.tenants)
    for index, each in enumerate(options.classes):
        between(each.calls, 0, MOST_REQUESTS, f"classes[{index}].calls")
        between(each.abreast, 1, MOST_REQUESTS, f"classes[{index}].abreast")
        check_lengths(each.prompt, f"classes[{index}].prompt")
        check_lengths(each.output, f"classes[{index}].output")
