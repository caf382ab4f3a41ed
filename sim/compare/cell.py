"""What is kept of one run: its summary, and curves, tenants, slowdowns and courses of bounded size."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from stepwell.core.config import Config
from stepwell.core.protocols import BatchShape, CostModel
from stepwell.core.registry import make_cost_model
from stepwell.core.types import FOREVER, NS_PER_MS
from stepwell.sim.compare.measures import MEASURES
from stepwell.sim.compare.records import (
    CURVE_STEPS,
    SERIES_POINTS,
    Cell,
    Curve,
    OverTime,
    Point,
    Sections,
    SizeBucket,
    TenantNumbers,
)
from stepwell.sim.metrics import RequestRecord, RunMetrics
from stepwell.sim.run import Result
from stepwell.sim.series import Series
from stepwell.sim.stats import percentiles
from stepwell.sim.summary import COMPLETED, Judge, of_requests, run_time, tpot_ns

MOST_SECTIONS = 20
SECTION_REQUESTS = 50
"""A section has so many requests at least, where all are taken together."""

MOST_TENANTS = 100
"""Tenants told of one by one: those with the most requests."""

MOST_SLOWDOWNS = 2_000
"""Requests whose slowdown is worked out, at most: every k-th."""

_STEPS = [k / CURVE_STEPS for k in range(CURVE_STEPS + 1)]


def make_cell(
    result: Result,
    series: Series,
    *,
    contender: str,
    point: Point,
    seed: int,
    digest: str,
    overrides: list[str],
    sections: bool,
) -> Cell:
    """Everything that is kept of a run.  ``sections``: also what its stretches say one by one."""
    config, metrics = result.config, result.metrics
    records = list(metrics.requests.values())
    scopes: list[tuple[str, list[RequestRecord]]] = [("all", records)]
    if len(result.summary.classes) > 1:
        scopes += [(each.name, [r for r in records if r.klass == each.name]) for each in result.summary.classes]
    return Cell(
        contender=contender,
        point=point,
        seed=seed,
        digest=digest,
        overrides=overrides,
        summary=result.summary,
        tenants=_tenants(records, metrics, config),
        curves=[curve for name, members in scopes for curve in _curves(name, members)],
        slowdown=_slowdowns(records, make_cost_model(config.cost), config.scheduler.token_budget),
        over_time=_over_time(series, config.memory.pages),
        sections=[each for name, members in scopes for each in _sections(name, members, metrics, config)]
        if sections
        else [],
    )


# ------------------------------------------------------------------------------------------------ latencies


def _curves(scope: str, records: Sequence[RequestRecord]) -> list[Curve]:
    completed = [each for each in records if each.reason in COMPLETED]
    values: dict[str, list[float]] = {
        "ttft": [each.first_token_ns - each.arrival_ns for each in records if each.first_token_ns],
        "tpot": [tpot_ns(each) for each in completed if each.tokens >= 2],
        "e2e": [each.last_token_ns - each.arrival_ns for each in completed],
    }
    return [Curve(metric, scope, len(each), len(records), _quantiles_ms(each)) for metric, each in values.items()]


def _quantiles_ms(values_ns: Sequence[float]) -> list[float]:
    """Six digits each: a picture shows no more."""
    return [float(f"{each / NS_PER_MS:.6g}") for each in percentiles(values_ns, _STEPS) if each is not None]


def _sections(scope: str, records: Sequence[RequestRecord], metrics: RunMetrics, config: Config) -> list[Sections]:
    """The scope's metrics in each of equal stretches of its requests, in order of arrival."""
    count = min(MOST_SECTIONS, len(records) // SECTION_REQUESTS)
    if count < 2:
        return []
    start_ns, end_ns = run_time(metrics)
    judge = Judge(config, end_ns)
    bounds = [len(records) * k // count for k in range(count + 1)]
    span_ns = (end_ns - start_ns) // count
    parts = [of_requests(scope, records[low:high], [], judge, span_ns) for low, high in pairwise(bounds)]
    found = []
    for measure in MEASURES:
        of_scope = measure.of_scope
        if of_scope is not None and not measure.metric.name.startswith("itl") and measure.metric.name != "preemptions":
            found.append(Sections(scope, measure.metric.name, [of_scope(part) for part in parts]))
    return found


# ------------------------------------------------------------------------------------------------ tenants


def _tenants(records: Sequence[RequestRecord], metrics: RunMetrics, config: Config) -> list[TenantNumbers]:
    by_name: dict[str, list[RequestRecord]] = {}
    for record in records:
        by_name.setdefault(record.tenant, []).append(record)
    start_ns, end_ns = run_time(metrics)
    judge = Judge(config, end_ns)
    weights = {each.name: each.weight for each in config.tenants}
    everything = sum(map(service, records))
    told = sorted(by_name.items(), key=lambda item: (-len(item[1]), item[0]))[:MOST_TENANTS]
    found = []
    for name, members in sorted(told):
        numbers = of_requests(name, members, [], judge, end_ns - start_ns)
        served = sum(map(service, members))
        per_token = [(r.last_token_ns - r.arrival_ns) / r.tokens for r in members if r.reason in COMPLETED and r.tokens]
        found.append(
            TenantNumbers(
                name=name,
                weight=weights.get(name, 1.0),
                offered=numbers.offered,
                completed=numbers.completed,
                slo_attainment=numbers.slo_attainment if numbers.has_objectives else None,
                service=served,
                share=served / everything if everything else 0.0,
                ttft_ms=numbers.ttft_ms,
                e2e_ms=numbers.e2e_ms,
                per_token_ms=sum(per_token) / len(per_token) / NS_PER_MS if per_token else None,
            )
        )
    return found


def service(record: RequestRecord) -> int:
    """Weighted tokens that a request was given: its prompt, and twice its output (as VTC counts)."""
    return record.prompt_tokens + 2 * record.tokens if record.first_token_ns else 0


# ------------------------------------------------------------------------------------------------ sizes


def alone_ns(cost: CostModel, prompt_tokens: int, output_tokens: int, token_budget: int) -> int:
    """E2E of a request that has the device for itself, its prompt computed in slices of the whole budget."""
    total_ns = 0
    for start in range(0, prompt_tokens, token_budget):
        tokens = min(token_budget, prompt_tokens - start)
        pairs = tokens * (2 * start + tokens + 1) // 2
        shape = BatchShape(prefill_tokens=tokens, prefill_requests=1, kv_tokens=start, prefill_pairs=pairs)
        total_ns += cost.step_ns(shape)
    if output_tokens < 2:
        return total_ns
    decode = BatchShape(decode_requests=1, kv_tokens=prompt_tokens)
    return cost.run_ns(decode, total_ns, output_tokens - 1, FOREVER)[-1]


def _slowdowns(records: Sequence[RequestRecord], cost: CostModel, token_budget: int) -> list[SizeBucket]:
    """By size, in powers of two."""
    completed = [each for each in records if each.reason in COMPLETED and each.tokens]
    by_size: dict[int, list[float]] = {}
    for record in completed[:: -(-len(completed) // MOST_SLOWDOWNS) or 1]:
        size = (record.prompt_tokens + record.tokens).bit_length()
        alone = alone_ns(cost, record.prompt_tokens, record.tokens, token_budget)
        by_size.setdefault(size, []).append((record.last_token_ns - record.arrival_ns) / alone)
    found = []
    for size, values in sorted(by_size.items()):
        p50, p90, p99 = (float(each or 0) for each in percentiles(values, (0.5, 0.9, 0.99)))
        mean = sum(values) / len(values)
        found.append(SizeBucket(1 << (size - 1), (1 << size) - 1, len(values), mean, p50, p90, p99))
    return found


# ------------------------------------------------------------------------------------------------ time


def _over_time(series: Series, pages: int) -> OverTime:
    """The last sample at or before each of evenly spaced instants."""
    times = series.time_s
    if not times:
        return OverTime()
    step_s = (times[-1] - times[0]) / (SERIES_POINTS - 1)
    instants = [times[0] + k * step_s for k in range(SERIES_POINTS - 1)] + [times[-1]]
    places = sorted({bisect_right(times, instant) - 1 for instant in instants})
    return OverTime(
        time_s=[times[at] for at in places],
        waiting=[series.waiting[at] for at in places],
        running=[series.running[at] for at in places],
        kv_share=[float(f"{series.pages[at] / pages:.4g}") for at in places],
    )
