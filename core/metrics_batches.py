"""What a scraper reads of batches and files; the families are there without a store, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric


class BatchTally(msgspec.Struct, frozen=True):
    """Lines of batches, now and since the start, and the bytes of all files as of the last look."""

    lines: Mapping[str, int]
    """Of unfinished batches, by ``waiting`` and ``running``."""
    ended: Mapping[str, int]
    """Since the start, by ``completed`` and ``failed``."""
    files_bytes: int


NOTHING = BatchTally({"waiting": 0, "running": 0}, {"completed": 0, "failed": 0}, 0)


def batch_families(read: Callable[[], BatchTally] | None, labels: Sequence[str]) -> Iterable[Metric]:
    """``labels`` are the values of those that all families have."""
    tally = read() if read is not None else NOTHING
    common = ["model_name", "engine"]
    now = GaugeMetricFamily("stepwell:batch_lines", "Lines of unfinished batches.", labels=[*common, "state"])
    for state, count in tally.lines.items():
        now.add_metric([*labels, state], count)
    ended = CounterMetricFamily("stepwell:batch_lines_ended", "Lines that got a result.", labels=[*common, "state"])
    for state, count in tally.ended.items():
        ended.add_metric([*labels, state], count)
    files = GaugeMetricFamily("stepwell:files_bytes", "Bytes of all files that are kept.", labels=common)
    files.add_metric(labels, tally.files_bytes)
    return [now, ended, files]
