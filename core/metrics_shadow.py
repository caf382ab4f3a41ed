"""What a scraper reads of the shadow policy; the families are there without one, too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from stepwell.core.shadow import Shadow
from stepwell.core.types import NS_PER_S


def shadow_families(shadow: Shadow | None, labels: Sequence[str]) -> Iterable[Metric]:
    """``labels`` are the values of those that all families have."""
    common = ["model_name", "engine"]
    on = GaugeMetricFamily("stepwell:shadow_on", "1 while a second policy is asked beside.", labels=common)
    steps = CounterMetricFamily("stepwell:shadow_steps", "Steps, by what the shadow said.", labels=[*common, "said"])
    differences = CounterMetricFamily(
        "stepwell:shadow_differences",
        "What the live policy did with a request and the shadow would have done.",
        labels=[*common, "live", "shadow"],
    )
    chunks = CounterMetricFamily(
        "stepwell:shadow_chunk_tokens", "Tokens by which slices of the same prompts differed.", labels=common
    )
    seconds = CounterMetricFamily("stepwell:shadow_seconds", "Time that the shadow took.", labels=[*common, "for"])
    if shadow is not None:
        report = shadow.report()
        on.add_metric(labels, float(not report.off))
        said = {
            "same": report.compared - report.differed,
            "different": report.differed,
            "skipped": report.skipped,
            "repeated": report.repeated,
        }
        for word, count in said.items():
            steps.add_metric([*labels, word], count)
        for each in report.differences:
            differences.add_metric([*labels, each.live, each.shadow], each.steps)
        chunks.add_metric(labels, report.chunk_tokens)
        for word, spent_ns in (("observing", report.observing_ns), ("planning", report.planning_ns)):
            seconds.add_metric([*labels, word], spent_ns / NS_PER_S)
    yield from (on, steps, differences, chunks, seconds)
