"""The parts of a comparison's result; ``result`` puts them together and says what the words mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from stepwell.core.config import ClassConfig
from stepwell.sim.summary import Spread, Summary

CURVE_STEPS = 200
SERIES_POINTS = 200

Method = Literal["seeds", "sections", "none"]
"""How an interval was found: over seeds, over sections of one run, or not at all.  See ``statistics``."""


class Contender(msgspec.Struct, frozen=True):
    """What competes.  ``label`` is unique."""

    label: str
    policy: str
    allocator: str
    options: Mapping[str, object] = {}
    allocator_options: Mapping[str, object] = {}


class Point(msgspec.Struct, frozen=True):
    """A rate at which requests arrive.  ``load`` is its share of the saturated rate, if that was asked for.

    ``rate_per_s`` is None where each workload keeps its own rate.
    """

    load: float | None = None
    rate_per_s: float | None = None

    @property
    def label(self) -> str:
        if self.load is not None:
            return f"load {self.load:g}"
        return f"{self.rate_per_s:g}/s" if self.rate_per_s is not None else "own rate"


class Metric(msgspec.Struct, frozen=True):
    """A number that rows hold.  ``better``: 1 if more is better, -1 if less is, 0 if neither.

    Values are in ``unit`` (``ms``, ``/s``, ``share`` from 0 to 1, ``count``, ``ratio``).  ``scoped``: there is one for
    each class; otherwise only for ``all``.
    """

    name: str
    label: str
    unit: str
    better: int
    scoped: bool


class Axes(msgspec.Struct, frozen=True):
    """What was compared.  ``scopes`` are ``all`` and, if there are several, the classes that the workload has.

    ``tenants`` are told in scopes ``tenant:NAME`` if there are several.
    ``saturated_per_s``: how fast the baseline completes requests when all of the first seed's arrive at once.
    ``slo_share``: the SLO attainment that a knee holds; ``tolerance`` how far it may lie below the true one.
    """

    contenders: list[Contender]
    baseline: str
    points: list[Point]
    seeds: list[int]
    scopes: list[str]
    metrics: list[Metric]
    classes: list[ClassConfig]
    tenants: list[str] = []
    saturated_per_s: float | None = None
    slo_share: float | None = None
    tolerance: float | None = None

    def metric(self, name: str) -> Metric | None:
        return next((each for each in self.metrics if each.name == name), None)


class SeedWorkload(msgspec.Struct, frozen=True):
    """The requests of a seed, before they are scaled to a point's rate."""

    seed: int
    digest: str
    requests: int
    rate_per_s: float
    lines: list[str]
    """What a report says of them, in sentences."""
    followers: int = 0
    """Requests that arrive when others have ended; rates are of the others then."""

    @property
    def by_clock(self) -> int:
        return self.requests - self.followers


class Curve(msgspec.Struct, frozen=True):
    """A distribution: ``values_ms[k]`` is the quantile ``k / CURVE_STEPS``, smallest to largest; empty if no value.

    ``metric`` is ``ttft``, ``tpot`` or ``e2e``; ``scope`` a class or ``all``.  ``offered``: of so many requests;
    ``count`` of them have a value.
    """

    metric: str
    scope: str
    count: int
    offered: int
    values_ms: list[float]


class TenantNumbers(msgspec.Struct, frozen=True):
    """One tenant in one run.

    ``service`` is its prompt tokens plus twice its output tokens, of requests that got a first token; ``share`` its
    part of everybody's.  ``per_token_ms`` is E2E over output tokens, the mean of completed requests.
    """

    name: str
    weight: float
    offered: int
    completed: int
    slo_attainment: float | None
    service: int
    share: float
    ttft_ms: Spread
    e2e_ms: Spread
    per_token_ms: float | None


class SizeBucket(msgspec.Struct, frozen=True):
    """Slowdown of completed requests of ``tokens_from`` to ``tokens_to`` (inclusive) prompt and output tokens.

    Slowdown is E2E over the E2E that the request would have alone on the device, without any cached prefix.
    """

    tokens_from: int
    tokens_to: int
    count: int
    mean: float
    p50: float
    p90: float
    p99: float


class OverTime(msgspec.Struct, frozen=True):
    """At most ``SERIES_POINTS`` instants: requests in line, requests running, share of KV pages in use."""

    time_s: list[float] = []
    waiting: list[int] = []
    running: list[int] = []
    kv_share: list[float] = []


class Sections(msgspec.Struct, frozen=True):
    """A metric in each of some stretches of one run, with equally many requests each in order of arrival."""

    scope: str
    metric: str
    values: list[float | None]


class Cell(msgspec.Struct, frozen=True):
    """One run.  ``overrides`` make it from the scenario, as ``stepwell sim --set`` or ``simulate`` take them.

    ``digest`` identifies what was run: configuration and requests.
    """

    contender: str
    point: Point
    seed: int
    digest: str
    overrides: list[str]
    summary: Summary
    tenants: list[TenantNumbers]
    curves: list[Curve]
    slowdown: list[SizeBucket]
    over_time: OverTime
    sections: list[Sections]


class Failure(msgspec.Struct, frozen=True):
    """A run that ended with an error; ``command`` repeats it."""

    contender: str
    point: Point
    seed: int
    error: str
    command: str


class Row(msgspec.Struct, frozen=True):
    """A metric of a contender at a point: the mean over seeds (or the one run's value) and its 95 % interval.

    ``count``: over so many seeds, or sections; ``low`` and ``high`` are None where no interval can be had.
    """

    contender: str
    point: Point
    scope: str
    metric: str
    mean: float
    low: float | None
    high: float | None
    count: int
    method: Method


class Difference(msgspec.Struct, frozen=True):
    """A contender less the baseline, both under the same requests: mean of the pairs and its 95 % interval.

    ``relative`` is the mean over the baseline's mean, if that is not 0.  ``real``: the interval leaves out 0; None
    where there is no interval.  ``better`` says so of a real one whose metric has a better side.
    """

    contender: str
    baseline: str
    point: Point
    scope: str
    metric: str
    mean: float
    low: float | None
    high: float | None
    count: int
    method: Method
    relative: float | None
    real: bool | None
    better: bool | None


class Ranked(msgspec.Struct, frozen=True):
    """A contender's rank by its mean (1 is best, equal ones share), and its best and worst rank over seeds."""

    contender: str
    rank: int
    best: int
    worst: int


class Ranking(msgspec.Struct, frozen=True):
    """Contenders in order, best first.

    ``stability``: of all pairs of contenders and seeds (or sections), the share in which the pair is ordered as the
    means order it; 1 if no seed disagrees, 0.5 if they toss a coin, None if there is but one seed or contender.
    """

    point: Point
    scope: str
    metric: str
    order: list[Ranked]
    stability: float | None
    count: int
    method: Method


class SeedKnee(msgspec.Struct, frozen=True):
    """The knee with one seed.  ``tried`` are rates and the SLO attainment found there, in the order of the search."""

    seed: int
    rate_per_s: float
    tried: list[tuple[float, float]]
    bound: Literal["found", "below", "above"]
    """``below``: not even the lowest rate tried held, and ``rate_per_s`` is 0; ``above``: the highest tried held."""


class Knee(msgspec.Struct, frozen=True):
    """The highest rate at which ``scope`` attains its objectives by ``Axes.slo_share``: mean over seeds, 95 % interval.

    ``difference`` is to the baseline's, seed by seed; None if a search of either met its end without an answer.
    """

    contender: str
    scope: str
    mean: float
    low: float | None
    high: float | None
    seeds: list[SeedKnee]
    difference: float | None = None
    difference_low: float | None = None
    difference_high: float | None = None

    @property
    def bound(self) -> Literal["found", "below", "above"]:
        """``above``: with some seed the highest rate tried held, so the mean is a least one; ``below``: with some seed
        none held, which counts as 0."""
        bounds = {each.bound for each in self.seeds}
        return "above" if "above" in bounds else "below" if "below" in bounds else "found"
