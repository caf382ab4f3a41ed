"""What a scraper reads of the live engine, under the names that the field's tools already know (``vllm:*``).

Everything about requests derives from events and instructions alone, as the journal has them; the transports add what
only they see (sockets, slow readers).  Counting follows what changes: a step of the unchanged decode group costs a few
additions, whatever its size, and a request is forgotten when it ends.

The rules, so that numbers can be reconciled.  A request is *accepted* unless the scheduler refuses it on arrival; each
accepted one ends once, under one reason in ``request_success``.  Its prompt counts once, when it is first admitted (or
when it ends, if it never was), however often it is recomputed.  ``generation_tokens`` counts tokens when they are
sampled; a stop string takes some back, which the per-request histogram shows and the counter does not.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from stepwell.core.events import Event, StepDone, StepFailed, Submitted, UsePolicy
from stepwell.core.instructions import (
    Admitted,
    Finished,
    Instruction,
    Launch,
    PolicyFault,
    Preempted,
    Rejected,
    Resumed,
)
from stepwell.core.metrics_policy import PolicyRecord
from stepwell.core.metrics_shadow import shadow_families
from stepwell.core.shadow import Shadow
from stepwell.core.types import NS_PER_S, RequestId

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_TTFT = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    *(160.0, 640.0, 2560.0),
)
_ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_E2E = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0)
_TOKENS = tuple(float(base * 10**power) for power in range(6) for base in (1, 2, 5))
_FEW = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0)

_SECONDS = {
    "time_to_first_token_seconds": ("Arrival to first token.", _TTFT),
    "inter_token_latency_seconds": ("Gap between two tokens of one request.", _ITL),
    "request_time_per_output_token_seconds": ("(last - first) / (n - 1), one value a request.", _ITL),
    "e2e_request_latency_seconds": ("Arrival to end, of requests that were answered.", _E2E),
    "request_queue_time_seconds": ("Arrival to first admission.", _E2E),
    "request_prefill_time_seconds": ("First admission to first token.", _E2E),
    "request_decode_time_seconds": ("First token to end, of requests that were answered.", _E2E),
    "request_inference_time_seconds": ("First admission to end, of requests that were answered.", _E2E),
}
_COUNTS = {
    "request_prompt_tokens": ("Prompt tokens of a request.", _TOKENS),
    "request_generation_tokens": ("Tokens of the answer.", _TOKENS),
    "request_num_preemptions": ("How often a request was preempted.", _FEW),
    "iteration_tokens_total": ("Tokens computed in a step.", _TOKENS),
}
REASONS = {"stop": "stop", "length": "length", "cancelled": "abort", "expired": "abort", "error": "error"}
"""The field's word for each end; a waiting request that the policy rejected counts under ``admission_rejections``."""


class Histogram:
    """Counts by bucket; many equal values cost what one does."""

    __slots__ = ("buckets", "counts", "sum")

    def __init__(self, buckets: Sequence[float]) -> None:
        self.buckets = buckets
        self.counts = [0] * (len(buckets) + 1)
        self.sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """``times`` equal observations."""
        self.counts[bisect_left(self.buckets, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        return sum(self.counts)

    def cumulative(self) -> list[tuple[str, float]]:
        """As the exposition format wants it."""
        total, rows = 0, []
        for bound, count in zip([*map(str, self.buckets), "+Inf"], self.counts, strict=True):
            total += count
            rows.append((bound, float(total)))
        return rows


class _Live(msgspec.Struct, gc=False):
    """A request that has not ended.  ``last_ns`` is when it sampled last, unless it is in the group; -1 is not yet."""

    arrival_ns: int
    prompt_tokens: int
    max_tokens: int
    parent: RequestId
    admitted_ns: int = -1
    first_ns: int = -1
    last_ns: int = 0
    preemptions: int = 0
    running: bool = False


class ServingMetrics:
    """An engine's observer, and the text of ``/metrics``.  ``total_pages`` is what KV usage is a share of."""

    def __init__(self, model_name: str, total_pages: int, page_size: int = 0) -> None:
        self.total_pages = total_pages
        self.live: dict[RequestId, _Live] = {}
        self.running = self.steps = self.failed_steps = 0
        self.pages = 0
        self.accepted = self.prompt_tokens = self.generation_tokens = 0
        self.cached_tokens = self.queried_tokens = 0
        self.preemptions: dict[str, int] = {"swap": 0, "recompute": 0}
        self.ends = dict.fromkeys(REASONS.values(), 0)
        self.rejections: dict[str, int] = {}
        self.policy = PolicyRecord()
        self.shadow: Shadow | None = None
        self.histograms = {name: Histogram(buckets) for name, (_, buckets) in (_SECONDS | _COUNTS).items()}
        self.transport: dict[str, int] = {}
        """Counted by the transports (``count``): ends of connections by reason, bytes dropped, and so on."""
        self.gauges: dict[str, tuple[str, Callable[[], float]]] = {}
        """What they are, and read when asked: open streams and sockets."""
        self.counters: dict[str, tuple[str, Callable[[], int]]] = {}
        """The same, of what only grows."""
        self.measured: dict[str, tuple[str, Histogram]] = {}
        """The same, of histograms."""
        self._labels = [model_name, "0"]
        self._page_size = page_size
        self._members: dict[RequestId, None] = {}
        self._group_ns = 0
        self._inflight: deque[tuple[Launch, Sequence[RequestId]]] = deque()
        self._moved_ns = 0
        self._ended_ns: deque[int] = deque(maxlen=64)
        self._take: dict[type, Callable[[int, Any], None]] = {
            StepDone: self._step_done,
            StepFailed: self._step_failed,
            Submitted: self._submitted,
            Launch: self._launch,
            Admitted: self._admitted,
            Preempted: self._preempted,
            Resumed: self._resumed,
            Finished: self._finished,
            Rejected: self._rejected,
            PolicyFault: self.policy.faulted,
            UsePolicy: self.policy.swapped,
        }

    @property
    def waiting(self) -> int:
        return len(self.live) - self.running

    def count(self, name: str, times: int = 1) -> None:
        """Something only a transport sees happened."""
        self.transport[name] = self.transport.get(name, 0) + times

    def stalled_ns(self, now_ns: int) -> int:
        """For how long there has been work without any step finishing; 0 while idle."""
        return now_ns - self._moved_ns if self.live else 0

    def wait_ns(self, now_ns: int) -> int:
        """A guess how long a new request would wait: those before it, at the pace at which requests ended lately.

        Before two have, the pace is that at which those that run would end if the oldest of them were half-way, or
        earlier if it may not say so much more.  0 if nothing runs: nobody knows.
        """
        ended, ahead = self._ended_ns, max(self.waiting, 1)
        if len(ended) > 1:
            return ahead * (ended[-1] - ended[0]) // (len(ended) - 1)
        oldest = next((live for live in self.live.values() if live.running), None)
        return ahead * self._left_ns(oldest, now_ns) // self.running if oldest is not None else 0

    def _left_ns(self, live: _Live, now_ns: int) -> int:
        age_ns, gaps = now_ns - live.admitted_ns, self.histograms["inter_token_latency_seconds"]
        if not gaps.count:
            return age_ns
        most_ns = int(live.max_tokens * gaps.sum / gaps.count * NS_PER_S) - age_ns
        return max(min(age_ns, most_ns), 1)

    def observe(self, now_ns: int, events: Sequence[Event], instructions: Sequence[Instruction]) -> None:
        """Take in one turn."""
        take = self._take
        for event in events:
            if type(event) in take:
                take[type(event)](now_ns, event)
        for instruction in instructions:
            if type(instruction) in take:
                take[type(instruction)](now_ns, instruction)

    def _add(self, name: str, value_ns: int, times: int = 1) -> None:
        self.histograms[name].add(value_ns / NS_PER_S, times)

    # ------------------------------------------------------------------------------------------- steps

    def _launch(self, now_ns: int, launch: Launch) -> None:
        self.steps += 1
        self.pages += len(launch.growth) >> 1
        sampled: Sequence[RequestId] = ()
        tokens = 0
        if launch.slices:
            sampled = [id for id, _, _, samples in launch.slices if samples]
            tokens = sum([count for _, _, count, _ in launch.slices])
        if launch.tables:
            self.pages += sum([len(table) for _, table in launch.tables])
        if launch.decode:
            tokens += len(self._members) + len(launch.joined) - len(launch.left)
        self.histograms["iteration_tokens_total"].add(tokens)
        self._inflight.append((launch, sampled))

    def _step_done(self, now_ns: int, done: StepDone) -> None:
        self._moved_ns = now_ns
        launch, sampled = self._inflight.popleft()
        members = self._members
        for id in launch.left:
            if members.pop(id, 0) is None and id in self.live:
                self.live[id].last_ns = self._group_ns
        if launch.decode:
            if members:
                self.generation_tokens += len(members)
                self._add("inter_token_latency_seconds", now_ns - self._group_ns, len(members))
            for id in launch.joined:
                live = self.live.get(id)
                if live is not None:
                    self.generation_tokens += 1
                    self._add("inter_token_latency_seconds", now_ns - live.last_ns)
                    members[id] = None
            self._group_ns = now_ns
        for id in sampled:
            self._sampled(now_ns, id)

    def _sampled(self, now_ns: int, id: RequestId) -> None:
        live = self.live.get(id)
        if live is None:
            return
        self.generation_tokens += 1
        if live.first_ns >= 0:
            self._add("inter_token_latency_seconds", now_ns - live.last_ns)
        else:
            live.first_ns = now_ns
            self._add("time_to_first_token_seconds", now_ns - live.arrival_ns)
            self._add("request_prefill_time_seconds", now_ns - live.admitted_ns)
        live.last_ns = now_ns

    def _step_failed(self, now_ns: int, failed: StepFailed) -> None:
        self.failed_steps += len(self._inflight)
        self._inflight.clear()
        for id in self._members:
            self.live[id].last_ns = self._group_ns
        self._members.clear()

    # ------------------------------------------------------------------------------------------- requests

    def _submitted(self, now_ns: int, event: Submitted) -> None:
        if not self.live:
            self._moved_ns = now_ns
            self._ended_ns.clear()  # a pace is that of a busy engine
        self.accepted += 1
        self.live[event.request] = _Live(now_ns, event.prompt_tokens, event.max_tokens, event.parent)

    def _rejected(self, now_ns: int, rejected: Rejected) -> None:
        self.accepted -= 1
        del self.live[rejected.request]
        self._refuse(rejected.code)

    def _refuse(self, code: str) -> None:
        self.rejections[code] = self.rejections.get(code, 0) + 1

    def _admitted(self, now_ns: int, admitted: Admitted) -> None:
        live = self.live[admitted.request]
        self._run(live, True)
        self.pages -= admitted.shared
        if live.admitted_ns < 0:
            live.admitted_ns = now_ns
            self._add("request_queue_time_seconds", now_ns - live.arrival_ns)
            self._prompt(live)
            if not live.parent:  # what choices of a prompt share is not looked up
                self.cached_tokens += admitted.cached
                self.queried_tokens += live.prompt_tokens

    def _prompt(self, live: _Live) -> None:
        self.prompt_tokens += live.prompt_tokens
        self.histograms["request_prompt_tokens"].add(live.prompt_tokens)

    def _run(self, live: _Live, runs: bool) -> None:
        self.running += runs - live.running
        live.running = runs

    def _preempted(self, now_ns: int, preempted: Preempted) -> None:
        live = self.live[preempted.request]
        self._run(live, False)
        live.preemptions += 1
        self.preemptions[preempted.mode] += 1
        self.pages -= preempted.pages

    def _resumed(self, now_ns: int, resumed: Resumed) -> None:
        self._run(self.live[resumed.request], True)

    def _finished(self, now_ns: int, finished: Finished) -> None:
        live = self.live.pop(finished.request)
        self._run(live, False)
        self.pages -= finished.pages
        last_ns = self._group_ns if self._members.pop(finished.request, 0) is None else live.last_ns
        self._ended_ns.append(now_ns)
        if live.admitted_ns < 0:
            self._prompt(live)
        if finished.reason == "rejected":
            self._refuse("policy")
            return
        self.ends[REASONS[finished.reason]] += 1
        self.histograms["request_generation_tokens"].add(finished.tokens)
        self.histograms["request_num_preemptions"].add(live.preemptions)
        if finished.reason in ("stop", "length"):
            self._add("e2e_request_latency_seconds", now_ns - live.arrival_ns)
            self._add("request_inference_time_seconds", now_ns - live.admitted_ns)
            self._add("request_decode_time_seconds", now_ns - live.first_ns)
            if finished.tokens > 1:
                self._add("request_time_per_output_token_seconds", (last_ns - live.first_ns) // (finished.tokens - 1))

    # ------------------------------------------------------------------------------------------- exposition

    def collect(self) -> Iterable[Metric]:
        """Every family, for a prometheus registry."""
        yield self._gauge("vllm:num_requests_running", "Requests on the device.", self.running)
        yield self._gauge("vllm:num_requests_waiting", "Requests in line, preempted ones included.", self.waiting)
        usage = self.pages / self.total_pages if self.total_pages else 0.0
        yield self._gauge("vllm:kv_cache_usage_perc", "Share of KV pages in use, 0 to 1.", usage)
        info = GaugeMetricFamily(
            "vllm:cache_config_info", "Pages and their size.", labels=["block_size", "num_gpu_blocks"]
        )
        info.add_metric([str(self._page_size), str(self.total_pages)], 1)
        yield info
        for name, text, label, values in (
            ("vllm:prompt_tokens", "Prompt tokens of requests taken in.", "", {"": self.prompt_tokens}),
            ("vllm:generation_tokens", "Tokens sampled.", "", {"": self.generation_tokens}),
            ("vllm:num_preemptions", "Requests taken off the device.", "", {"": sum(self.preemptions.values())}),
            ("vllm:prefix_cache_queries", "Prompt tokens looked up in the cache.", "", {"": self.queried_tokens}),
            ("vllm:prefix_cache_hits", "Prompt tokens found in the cache.", "", {"": self.cached_tokens}),
            ("vllm:prompt_tokens_cached", "Prompt tokens not computed again.", "", {"": self.cached_tokens}),
            ("vllm:request_success", "Requests that ended, by how.", "finished_reason", self.ends),
            ("vllm:admission_rejections", "Requests refused by the scheduler.", "reason", self.rejections),
            ("stepwell:requests_accepted", "Requests not refused; each ends once.", "", {"": self.accepted}),
            ("stepwell:preemptions", "Requests taken off the device, by how.", "mode", self.preemptions),
            ("stepwell:steps", "Steps launched.", "", {"": self.steps}),
            ("stepwell:steps_failed", "Steps that produced nothing.", "", {"": self.failed_steps}),
            ("stepwell:transport", "What connections did.", "event", self.transport),
        ):
            yield self._counter(name, text, label, values)
        yield from self.policy.collect(self._labels)
        yield from shadow_families(self.shadow, self._labels)
        for name, (text, read) in self.gauges.items():
            yield self._gauge(name, text, read())
        for name, (text, count) in self.counters.items():
            yield self._counter(name, text, "", {"": count()})
        for name, (text, measured) in self.measured.items():
            yield self._histogram(name, text, measured)
        for name, (text, _) in (_SECONDS | _COUNTS).items():
            yield self._histogram(f"vllm:{name}", text, self.histograms[name])

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=["model_name", "engine"])
        family.add_metric(self._labels, value)
        return family

    def _counter(self, name: str, text: str, label: str, values: dict[str, int]) -> Metric:
        family = CounterMetricFamily(name, text, labels=["model_name", "engine", *([label] if label else [])])
        for value, count in values.items():
            family.add_metric([*self._labels, *([value] if label else [])], count)
        return family

    def _histogram(self, name: str, text: str, histogram: Histogram) -> Metric:
        family = HistogramMetricFamily(name, text, labels=["model_name", "engine"])
        family.add_metric(self._labels, histogram.cumulative(), histogram.sum)
        return family

    def exposition(self) -> bytes:
        """The text of ``/metrics``."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)
