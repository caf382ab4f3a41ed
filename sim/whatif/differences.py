"""Three runs of the same requests side by side: as recorded, the same policy simulated again, and another one.

With one model of step times in both simulations, their difference is what the other policy would have changed: the
**effect**, taken request by request.  What the recorded run differs from its own simulation is the **error** of the
whole prediction, and bounds what an effect means: one that is smaller than the error may be the model's.

Intervals are of effects, over sections of the run (``compare.statistics``), and leave the error out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from stepwell.core.config import Config
from stepwell.core.types import NS_PER_MS, RequestId
from stepwell.sim.compare.cell import MOST_SECTIONS, SECTION_REQUESTS
from stepwell.sim.compare.measures import MEASURES, Measure
from stepwell.sim.compare.records import Metric
from stepwell.sim.compare.statistics import over_sections
from stepwell.sim.metrics import RequestRecord
from stepwell.sim.summary import COMPLETED, ClassSummary, Judge, of_requests, tpot_ns

Records = Sequence[RequestRecord]
"""The same requests in every run, in order of arrival."""

_TOLD = (
    *("slo_attainment", "goodput_per_s", "preemptions"),
    *(f"{latency}_{which}_ms" for latency in ("ttft", "tpot", "e2e") for which in ("mean", "p50", "p99")),
)

SHOWN = tuple(each for each in MEASURES if each.of_scope is not None and each.metric.name in _TOLD)
"""What is told of each class: means, medians, p99, objectives, preemptions."""

EXTREMES = 10


class Effect(msgspec.Struct, frozen=True):
    """One metric of one class (or ``all``) in the three runs.

    ``effect`` is ``other - again``, ``error`` is ``again - recorded``; None where a run has no value.  ``low`` and
    ``high`` bound the effect at 95 %; None where there are too few requests.  ``real``: they leave out 0.  ``better``
    says so of a real one whose metric has a better side.
    """

    scope: str
    metric: Metric
    recorded: float | None
    again: float | None
    other: float | None
    error: float | None
    effect: float | None
    low: float | None = None
    high: float | None = None
    real: bool | None = None
    better: bool | None = None


class RequestDifference(msgspec.Struct, frozen=True):
    """One request in the three runs, in ms; ``effect_ms`` is what the other policy changes in its E2E."""

    request: RequestId
    klass: str
    prompt_tokens: int
    tokens: int
    ttft_ms: tuple[float, float, float]
    e2e_ms: tuple[float, float, float]
    tpot_ms: tuple[float, float, float] | None
    preemptions: tuple[int, int, int]
    effect_ms: float


class Differences(msgspec.Struct, frozen=True):
    """``requests`` completed in all three runs, in order of arrival.

    ``lost`` completed in the recorded policy's simulation and do not in the other's, ``gained`` the other way round.
    """

    compared: int
    effects: list[Effect]
    requests: list[RequestDifference]
    lost: list[RequestId]
    gained: list[RequestId]

    def winners(self, count: int = EXTREMES) -> list[RequestDifference]:
        """Those that gain most time, the greatest gain first."""
        ordered = sorted(self.requests, key=lambda each: each.effect_ms)
        return [each for each in ordered[:count] if each.effect_ms < 0]

    def losers(self, count: int = EXTREMES) -> list[RequestDifference]:
        """Those that lose most."""
        ordered = sorted(self.requests, key=lambda each: -each.effect_ms)
        return [each for each in ordered[:count] if each.effect_ms > 0]


def differences(
    ids: Sequence[RequestId], recorded: Records, again: Records, other: Records, config: Config
) -> Differences:
    """Of requests that all three runs have; ``ids`` are the journal's, objectives those of ``config``."""
    runs = [_Run(each, config) for each in (recorded, again, other)]
    names = [each.name for each in config.classes if any(it.klass == each.name for it in recorded)]
    effects = []
    for scope in ["all", *(names if len(names) > 1 else [])]:
        whole = [run.summary(scope) for run in runs]
        parts = [run.sections(scope) for run in runs[1:]]
        effects += [_effect(scope, measure, whole, parts) for measure in SHOWN]
    done = [[each.reason in COMPLETED for each in run] for run in (recorded, again, other)]
    pairs = list(zip(ids, *done[1:], strict=True))
    return Differences(
        len(ids),
        effects,
        [
            _request(id, (first, second, third))
            for id, first, second, third, *complete in zip(ids, recorded, again, other, *done, strict=True)
            if all(complete)
        ],
        [id for id, before, after in pairs if before and not after],
        [id for id, before, after in pairs if after and not before],
    )


class _Run:
    """One of the three."""

    def __init__(self, records: Records, config: Config) -> None:
        self._records = records
        end_ns = max((each.finished_ns for each in records), default=0)
        self._span_ns = end_ns - min((each.arrival_ns for each in records), default=0)
        self._judge = Judge(config, end_ns)

    def _of(self, scope: str, records: Records, span_ns: int) -> ClassSummary:
        members = [each for each in records if scope in ("all", each.klass)]
        return of_requests(scope, members, [], self._judge, span_ns)

    def summary(self, scope: str) -> ClassSummary:
        return self._of(scope, self._records, self._span_ns)

    def sections(self, scope: str) -> list[ClassSummary]:
        """The same requests in the same section in every run; none if they are too few."""
        count = min(MOST_SECTIONS, len(self._records) // SECTION_REQUESTS)
        bounds = [len(self._records) * k // count for k in range(count + 1)] if count else []
        span_ns = self._span_ns // count if count else 0
        return [self._of(scope, self._records[low:high], span_ns) for low, high in pairwise(bounds)]


def _effect(
    scope: str, measure: Measure, whole: Sequence[ClassSummary], parts: Sequence[Sequence[ClassSummary]]
) -> Effect:
    value, metric = measure.of_scope, measure.metric
    assert value is not None
    recorded, again, other = (value(each) for each in whole)
    error = again - recorded if again is not None and recorded is not None else None
    if again is None or other is None:
        return Effect(scope, metric, recorded, again, other, error, None)
    effect = other - again
    if metric.name == "preemptions":  # a count of the whole run: sections hold parts of it
        return Effect(scope, metric, recorded, again, other, error, effect)
    pairs = [(value(before), value(after)) for before, after in zip(*parts, strict=True)]
    told = over_sections(
        effect, [after - before for before, after in pairs if before is not None and after is not None]
    )
    real = told.excludes_zero
    better = effect * metric.better > 0 if real and metric.better else None
    return Effect(scope, metric, recorded, again, other, error, effect, told.low, told.high, real, better)


def _request(id: RequestId, runs: tuple[RequestRecord, RequestRecord, RequestRecord]) -> RequestDifference:
    first, again, other = runs
    several = all(each.tokens >= 2 for each in runs)
    return RequestDifference(
        request=id,
        klass=first.klass,
        prompt_tokens=first.prompt_tokens,
        tokens=other.tokens,
        ttft_ms=_three([(each.first_token_ns - each.arrival_ns) / NS_PER_MS for each in runs]),
        e2e_ms=_three([(each.last_token_ns - each.arrival_ns) / NS_PER_MS for each in runs]),
        tpot_ms=_three([tpot_ns(each) / NS_PER_MS for each in runs]) if several else None,
        preemptions=(first.preemptions, again.preemptions, other.preemptions),
        effect_ms=(_e2e_ns(other) - _e2e_ns(again)) / NS_PER_MS,
    )


def _three(values: Sequence[float]) -> tuple[float, float, float]:
    first, second, third = values
    return first, second, third


def _e2e_ns(record: RequestRecord) -> int:
    return record.last_token_ns - record.arrival_ns
