"""Families of samples for a prometheus registry, all with the labels that every metric here has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from stepwell.core.metrics_histogram import Histogram

COMMON = ("model_name", "engine")

Samples = Mapping[Any, float]
"""Values by those of the family's own labels: tuples of texts, ``()`` if it has none."""


class Families:
    """``values``: of the common labels."""

    def __init__(self, values: Sequence[str]) -> None:
        self._values = list(values)

    def gauge(self, name: str, text: str, value: float) -> Metric:
        return self.gauges(name, text, (), {(): value})

    def gauges(self, name: str, text: str, labels: Sequence[str], samples: Samples) -> Metric:
        family = GaugeMetricFamily(name, text, labels=[*COMMON, *labels])
        for own, value in samples.items():
            family.add_metric([*self._values, *own], value)
        return family

    def counter(self, name: str, text: str, value: float) -> Metric:
        return self.counters(name, text, (), {(): value})

    def counters(self, name: str, text: str, labels: Sequence[str], samples: Samples) -> Metric:
        """Without ``_total``, which the exposition adds."""
        family = CounterMetricFamily(name, text, labels=[*COMMON, *labels])
        for own, value in samples.items():
            family.add_metric([*self._values, *own], value)
        return family

    def histogram(self, name: str, text: str, histogram: Histogram) -> Metric:
        return self.histograms(name, text, "", {"": histogram})

    def histograms(self, name: str, text: str, label: str, by_value: Mapping[str, Histogram]) -> Metric:
        """One by value of ``label``; without a label, one."""
        family = HistogramMetricFamily(name, text, labels=[*COMMON, *([label] if label else [])])
        for value, histogram in by_value.items():
            family.add_metric([*self._values, *([value] if label else [])], histogram.cumulative(), histogram.sum)
        return family


SLEEP_STATES = {"awake": 1.0, "weights_offloaded": 0.0, "discard_all": 0.0}
"""Those that the field knows; here a model is always awake."""


def by_one(values: Mapping[str, float]) -> Samples:
    """Of a family with one label of its own."""
    return {(value,): count for value, count in values.items()}
