"""The metrics that a comparison tells, each defined once: what it is called, and where its value is found.

A value is missing (None) where there is nothing to take it from: no request completed, no class has objectives, one
tenant only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from stepwell.sim.compare.records import Cell, Metric, TenantNumbers
from stepwell.sim.compare.statistics import jain
from stepwell.sim.summary import ClassSummary

TENANT = "tenant:"
"""Before a tenant's name, where scopes are named."""

Value = float | None


@dataclass(frozen=True)
class Measure:
    """A metric and how to read it: of a class (or all), of a tenant, or of a run as a whole; None: it has none."""

    metric: Metric
    of_scope: Callable[[ClassSummary], Value] | None = None
    of_tenant: Callable[[TenantNumbers], Value] | None = None
    of_run: Callable[[Cell], Value] | None = None


def _latency(name: str, quantile: str) -> Measure:
    field = f"{name}_ms"
    metric = Metric(f"{name}_{quantile}_ms", f"{name.upper()} {quantile}", "ms", -1, scoped=True)
    find = attrgetter(f"{field}.{quantile}")
    tenants = name in ("ttft", "e2e")
    return Measure(metric, of_scope=find, of_tenant=find if tenants else None)


def _run(name: str, label: str, unit: str, better: int, value: Callable[[Cell], Value]) -> Measure:
    return Measure(Metric(name, label, unit, better, scoped=False), of_run=value)


def _attained(scope: ClassSummary) -> Value:
    return scope.slo_attainment if scope.has_objectives else None


def _rejected_share(cell: Cell) -> Value:
    summary = cell.summary
    return sum(summary.rejected.values()) / summary.offered if summary.offered else None


def _fairness(cell: Cell) -> Value:
    return jain([each.per_token_ms for each in cell.tenants if each.per_token_ms is not None])


MEASURES: tuple[Measure, ...] = (
    Measure(
        Metric("slo_attainment", "SLO attainment", "share", 1, scoped=True),
        of_scope=_attained,
        of_tenant=attrgetter("slo_attainment"),
    ),
    Measure(Metric("goodput_per_s", "goodput", "/s", 1, scoped=True), of_scope=attrgetter("goodput_per_s")),
    *[
        _latency(name, quantile)
        for name in ("ttft", "tpot", "itl", "e2e")
        for quantile in ("mean", "p50", "p90", "p95", "p99")
    ],
    Measure(
        Metric("per_token_ms", "E2E per output token", "ms", -1, scoped=False),
        of_tenant=attrgetter("per_token_ms"),
    ),
    Measure(Metric("service_share", "share of the service", "share", 0, scoped=False), of_tenant=attrgetter("share")),
    _run("completed_per_s", "completed", "/s", 1, lambda it: it.summary.requests_per_s),
    _run("output_tokens_per_s", "output tokens", "/s", 1, lambda it: it.summary.output_tokens_per_s),
    Measure(Metric("preemptions", "preemptions", "count", 0, scoped=True), of_scope=lambda it: float(it.preemptions)),
    _run("recompute_tax", "recompute tax", "share", -1, lambda it: it.summary.recompute_tax),
    _run("rejected_share", "rejected", "share", -1, _rejected_share),
    _run("cached_share", "prefix hits", "share", 0, lambda it: it.summary.cached_share),
    _run("kv_utilisation", "KV use", "share", 0, lambda it: it.summary.kv_utilisation),
    _run("device_busy", "device busy", "share", 0, lambda it: it.summary.device_busy),
    _run("extrapolated_share", "steps extrapolated", "share", -1, lambda it: it.summary.extrapolated_share),
    _run("tenant_fairness", "fairness between tenants", "ratio", 1, _fairness),
)

METRICS = [each.metric for each in MEASURES]


def values_of(cell: Cell) -> dict[tuple[str, str], float]:
    """Every value of a run by (scope, metric).  Scopes are ``all``, classes, and ``tenant:NAME``."""
    summary = cell.summary
    scopes = [summary.all, *(summary.classes if len(summary.classes) > 1 else [])]
    found: dict[tuple[str, str], Value] = {}
    for measure in MEASURES:
        name = measure.metric.name
        if measure.of_scope is not None:
            found |= {(scope.name, name): measure.of_scope(scope) for scope in scopes}
        if measure.of_run is not None:
            found["all", name] = measure.of_run(cell)
        if measure.of_tenant is not None and len(cell.tenants) > 1:
            found |= {(TENANT + each.name, name): measure.of_tenant(each) for each in cell.tenants}
    return {key: value for key, value in found.items() if value is not None}
