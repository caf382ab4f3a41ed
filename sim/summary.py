"""The numbers of a run, from what its requests went through.  A run, and a journal of it, give the same bytes.

Rules, which nothing else repeats:

- **Run time** goes from the first arrival to the end of the last request (to the last event, if some never ended).
- **TTFT** is over requests that got a first token; **ITL** over all tokens after a first one; **TPOT** (two tokens or
  more) and **E2E** over completed requests, that is those that ended with ``stop`` or ``length``.
- Percentiles are nearest rank (``sim.stats``), means are exact sums divided once.
- **Output tokens** are those that count as the answer of requests that ended, whatever the reason.
- A request **met its objectives** if it completed, its TTFT was at most its class's ``ttft_ms``, and its TPOT at most
  ``tpot_ms`` (0: no objective; a single token has no TPOT to miss).
- **SLO attainment** is the share of offered requests that met theirs; those of classes without objectives are left out
  of ``all``.  Where no request has any, it is the share that completed, and ``has_objectives`` is false.  Rejected,
  expired and failed ones missed.  One that its client cancelled, or that the end of the run cut off, missed if it had
  by then: a first token late or overdue, or (cancelled only) a TPOT too high so far.  Otherwise nobody knows, and it
  is left out of the share.
- **Goodput** is requests that met their objectives per second of run time, those with none by completing.
- **Recompute tax** is recomputed over computed token positions; **KV use** (``kv_utilisation``) pages that requests
  hold over all pages, weighted by time, so cached pages that nobody uses are not in it; **prefix hits** the prompt
  tokens found in the KV cache when requests were first admitted, over all prompt tokens of these requests (choices
  that share a prompt count as found); **device busy** the share of the time in which a step was executing, up to the
  end of the last step (some are in flight when the last request ends).
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from operator import mul

import msgspec

from stepwell.core.config import Config
from stepwell.core.types import FOREVER, NS_PER_MS, NS_PER_S
from stepwell.sim.extrapolation import ESTIMATED, Source, StepTimeSource
from stepwell.sim.metrics import RequestRecord, RunMetrics, TokenGaps
from stepwell.sim.stats import percentiles

QUANTILES = (0.5, 0.9, 0.95, 0.99)
COMPLETED = ("stop", "length")


class Spread(msgspec.Struct, frozen=True):
    """A latency in milliseconds over ``count`` values; nothing where there is no value."""

    count: int
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None


class ClassSummary(msgspec.Struct, frozen=True):
    """Requests of one class, or all of them.

    ``judged`` of the ``offered`` ones count for ``slo_attainment``, and ``met_slo`` of these met their objectives.
    """

    name: str
    offered: int
    completed: int
    judged: int
    met_slo: int
    slo_attainment: float | None
    goodput_per_s: float
    output_tokens: int
    preemptions: int
    has_objectives: bool
    ttft_ms: Spread
    itl_ms: Spread
    tpot_ms: Spread
    e2e_ms: Spread


class Summary(msgspec.Struct, frozen=True):
    """See the module.  ``ended`` counts requests by the reason they ended for, ``rejected`` the refused by code.

    ``kv_utilisation`` is missing where the record does not begin with an empty device, ``cached_share`` where no prompt
    could be looked up: none came with keys (an allocator that reuses no prefixes gets none), and none was shared.
    ``step_times``, the share of steps beyond what their cost model was fitted on, and what nine in ten of the others
    are within, are those of ``extrapolation.StepTimeSource``, as is ``measured_share``.  The error is of single steps:
    where requests wait for one another, it adds up.
    """

    policy: str
    duration_s: float
    offered: int
    ended: dict[str, int]
    rejected: dict[str, int]
    unfinished: int
    steps: int
    failed_steps: int
    requests_per_s: float
    """Completed ones."""
    output_tokens_per_s: float
    preemptions_swap: int
    preemptions_recompute: int
    computed_tokens: int
    recomputed_tokens: int
    recompute_tax: float
    kv_utilisation: float | None
    device_busy: float
    all: ClassSummary
    classes: list[ClassSummary]
    step_times: Source = "estimated"
    extrapolated_share: float | None = None
    step_error_p90: float | None = None
    measured_share: float | None = None
    cached_tokens: int = 0
    cached_share: float | None = None


def summarise(
    metrics: RunMetrics, config: Config, *, partial: bool = False, step_times: StepTimeSource = ESTIMATED
) -> Summary:
    """The summary of what ``metrics`` saw.  ``partial``: the record began when the device was already in use."""
    start_ns, end_ns = run_time(metrics)
    span_ns = end_ns - start_ns
    steps_span_ns = max(span_ns, metrics.end_ns - start_ns)
    pages_ns = config.memory.pages * span_ns
    ended = Counter(each.reason for each in metrics.requests.values())
    unfinished = ended.pop("", 0)
    judge = Judge(config, end_ns)
    everybody = of_requests("all", metrics.requests.values(), list(metrics.gaps.values()), judge, span_ns)
    return Summary(
        policy=config.scheduler.policy,
        duration_s=span_ns / NS_PER_S,
        offered=everybody.offered,
        ended=dict(sorted(ended.items())),
        rejected=dict(sorted(metrics.refused.items())),
        unfinished=unfinished,
        steps=metrics.steps,
        failed_steps=metrics.failed_steps,
        requests_per_s=_per_s(everybody.completed, span_ns),
        output_tokens_per_s=_per_s(everybody.output_tokens, span_ns),
        preemptions_swap=metrics.swaps,
        preemptions_recompute=metrics.recomputes,
        computed_tokens=metrics.computed_tokens,
        recomputed_tokens=metrics.recomputed_tokens,
        recompute_tax=metrics.recomputed_tokens / metrics.computed_tokens if metrics.computed_tokens else 0.0,
        kv_utilisation=metrics.kv_page_ns / pages_ns if pages_ns and not partial else None,
        device_busy=metrics.busy_ns / steps_span_ns if steps_span_ns else 0.0,
        all=everybody,
        classes=[
            msgspec.structs.replace(everybody, name=klass.name)
            if len(metrics.gaps) == 1
            else of_requests(
                klass.name,
                (each for each in metrics.requests.values() if each.klass == klass.name),
                [metrics.gaps[klass.name]],
                judge,
                span_ns,
            )
            for klass in config.classes
            if klass.name in metrics.gaps
        ],
        step_times=step_times.source,
        extrapolated_share=step_times.extrapolated_share,
        step_error_p90=step_times.error_p90,
        measured_share=step_times.measured_share,
        cached_tokens=metrics.cached_tokens,
        cached_share=_cached_share(metrics),
    )


def _cached_share(metrics: RunMetrics) -> float | None:
    looked_up = metrics.keyed or metrics.cached_tokens
    return metrics.cached_tokens / metrics.admitted_tokens if looked_up and metrics.admitted_tokens else None


def run_time(metrics: RunMetrics) -> tuple[int, int]:
    """When the run began and ended, in nanoseconds."""
    start_ns, end_ns, all_ended = FOREVER, 0, True
    for each in metrics.requests.values():
        start_ns = min(start_ns, each.arrival_ns)
        end_ns = max(end_ns, each.finished_ns)
        all_ended = all_ended and bool(each.reason)
    return 0 if start_ns == FOREVER else start_ns, end_ns if all_ended else metrics.end_ns


class Judge:
    """Says whether a request met the objectives of its class: yes, no, or nobody knows.  The run ends at ``end_ns``."""

    def __init__(self, config: Config, end_ns: int) -> None:
        self._limits = {each.name: (each.ttft_ns, each.tpot_ns) for each in config.classes}
        self._end_ns = end_ns

    def asks(self, klass: str) -> bool:
        """Whether the class has objectives."""
        return any(self._limits.get(klass, ()))

    def met(self, record: RequestRecord) -> bool | None:
        if record.reason not in (*COMPLETED, "cancelled", ""):
            return False
        ttft_ns, tpot_ns = self._limits.get(record.klass, (0, 0))
        left_ns = record.finished_ns if record.reason else self._end_ns
        waited_ns = (record.first_token_ns or left_ns) - record.arrival_ns
        if ttft_ns and waited_ns > ttft_ns:
            return False
        gaps = record.tokens - 1
        if tpot_ns and gaps > 0 and record.last_token_ns - record.first_token_ns > tpot_ns * gaps:
            return False
        return True if record.reason in COMPLETED else None


def of_requests(
    name: str, records: Iterable[RequestRecord], gaps: Sequence[TokenGaps], judge: Judge, span_ns: int
) -> ClassSummary:
    """Of some requests and the gaps between their tokens; rates count over ``span_ns``.

    The records are looked at once and not kept: there may be a million.
    """
    offered = tokens = preemptions = good = asked = asked_known = asked_good = known = 0
    ttft_ns, e2e_ns, tpots_ns = array("q"), array("q"), array("d")
    for each in records:
        offered += 1
        tokens += each.tokens
        preemptions += each.preemptions
        met = judge.met(each)
        good += met is True
        known += met is not None
        if judge.asks(each.klass):
            asked += 1
            asked_good += met is True
            asked_known += met is not None
        if each.first_token_ns:
            ttft_ns.append(each.first_token_ns - each.arrival_ns)
        if each.reason in COMPLETED:
            e2e_ns.append(each.last_token_ns - each.arrival_ns)
            if each.tokens >= 2:
                tpots_ns.append(tpot_ns(each))
    judged, met_slo = (asked_known, asked_good) if asked else (known, good)
    return ClassSummary(
        name=name,
        offered=offered,
        completed=len(e2e_ns),
        judged=judged,
        met_slo=met_slo,
        slo_attainment=met_slo / judged if judged else None,
        goodput_per_s=_per_s(good, span_ns),
        output_tokens=tokens,
        preemptions=preemptions,
        has_objectives=bool(asked),
        ttft_ms=spread(ttft_ns),
        itl_ms=_gap_spread(gaps),
        tpot_ms=spread(tpots_ns),
        e2e_ms=spread(e2e_ns),
    )


def tpot_ns(record: RequestRecord) -> float:
    """Time per output token after the first; of a request with two tokens or more."""
    return (record.last_token_ns - record.first_token_ns) / (record.tokens - 1)


def spread(values_ns: Iterable[float]) -> Spread:
    """Mean and percentiles of times in nanoseconds, each value counting once."""
    values = values_ns if isinstance(values_ns, array) else list(values_ns)
    if not len(values):
        return Spread(0)
    return Spread(len(values), sum(values) / len(values) / NS_PER_MS, *_ms(percentiles(values, QUANTILES)))


def _gap_spread(gaps: Sequence[TokenGaps]) -> Spread:
    if len(gaps) == 1:
        values, counts = gaps[0].gaps_ns, gaps[0].counts  # not copied: a long run has millions
    else:
        values, counts = array("q"), array("q")
        for each in gaps:
            values.extend(each.gaps_ns)
            counts.extend(each.counts)
    total = sum(counts)
    if not total:
        return Spread(0)
    mean_ns = sum(map(mul, values, counts)) / total
    return Spread(total, mean_ns / NS_PER_MS, *_ms(percentiles(values, QUANTILES, counts)))


def _ms(values: Sequence[float | None]) -> list[float | None]:
    return [None if each is None else each / NS_PER_MS for each in values]


def _per_s(count: int, span_ns: int) -> float:
    return count * NS_PER_S / span_ns if span_ns else 0.0
