"""What a server's process costs while a crowd streams from it: processor time, memory, and how late its loop is."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from collections.abc import Mapping, Sequence

import msgspec

from stepwell.cli.process_stats import busy_s, children, cpu_s, rss_bytes

LAG = "stepwell:event_loop_lag_seconds"
WAITING = "vllm:num_requests_waiting"
STEPS = "stepwell:steps_total"
SLOW = "stepwell:transport_total"
OPEN = "stepwell:streams_open"
_LOOK_S = 0.5
_SERIES = re.compile(r"^([\w:]+)(?:\{(.*)\})? (\S+)$", re.M)


class Moment(msgspec.Struct, frozen=True):
    """Of a server's process, and of the processes that it started."""

    cpu_s: float
    worker_cpu_s: float
    busy_s: float
    """Of the whole machine."""
    metrics: Mapping[str, float]
    """By name and labels."""

    def total(self, name: str, part: str = "") -> float:
        """The sum over all series of a name, of those with ``part`` in their labels."""
        return sum(value for key, value in self.metrics.items() if key.partition("{")[0] == name and part in key)


class Probe:
    """Looks at the process ``pid``, whose metrics are at ``url`` (none: ``""``)."""

    def __init__(self, pid: int, url: str) -> None:
        self.pid, self._url = pid, url
        self.base_bytes = self.most_bytes = rss_bytes(pid)
        self._task: asyncio.Task[None] | None = None

    def rss(self) -> int:
        """Bytes now."""
        return rss_bytes(self.pid)

    def start(self) -> None:
        """From here on memory is looked at."""
        self.base_bytes = self.most_bytes = rss_bytes(self.pid)
        self._task = asyncio.ensure_future(self._watch())

    def stop(self) -> None:
        """No more."""
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            self.most_bytes = max(self.most_bytes, rss_bytes(self.pid))

    async def look(self) -> Moment:
        """Now; the metrics by a thread, which waits for the server and not for this loop."""
        worker_s = sum(cpu_s(each) for each in children(self.pid))
        own_s = cpu_s(self.pid)
        return Moment(own_s, worker_s, busy_s(), await asyncio.to_thread(self._metrics))

    def _metrics(self) -> dict[str, float]:
        if not self._url:
            return {}
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(self._url, timeout=60) as answer:
            text = answer.read().decode()
        return {f"{name}{{{labels}}}": float(value) for name, labels, value in _SERIES.findall(text)}


def quantile_s(before: Moment, after: Moment, name: str, q: float) -> float | None:
    """Of a histogram, between two moments: the bound of the bucket that holds it; None if nothing was counted."""
    rows: list[tuple[float, float]] = []
    for key, value in after.metrics.items():
        if key.startswith(f"{name}_bucket"):
            bound = re.search(r'le="([^"]+)"', key)
            assert bound is not None
            rows.append((float(bound[1].replace("+Inf", "inf")), value - before.metrics.get(key, 0.0)))
    rows.sort()
    return _bound_of(rows, q)


def _bound_of(rows: Sequence[tuple[float, float]], q: float) -> float | None:
    if not rows or not rows[-1][1]:
        return None
    wanted = q * rows[-1][1]
    return next(bound for bound, count in rows if count >= wanted)
