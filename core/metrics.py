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

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric

from stepwell.core.events import Event, Pause, StepDone, StepFailed, Submitted, UsePolicy
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
from stepwell.core.limits import SchedulerLimits
from stepwell.core.metrics_batches import BatchTally, batch_families
from stepwell.core.metrics_families import SLEEP_STATES, Families, by_one
from stepwell.core.metrics_histogram import Histogram
from stepwell.core.metrics_policy import PolicyRecord, public_name
from stepwell.core.metrics_queue import Deferred, queue_families
from stepwell.core.metrics_requests import NEVER, REASONS, Live, left_ns, request_families, request_histograms
from stepwell.core.metrics_shadow import shadow_families
from stepwell.core.metrics_slo import SloCounts
from stepwell.core.metrics_steps import Foresight, StepMetrics
from stepwell.core.metrics_tenants import TenantTokens
from stepwell.core.shadow import Shadow
from stepwell.core.types import NS_PER_S, RequestId

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class ServingMetrics:
    """An engine's observer, and the text of ``/metrics``.  ``total_pages`` is what KV usage is a share of.

    ``policy`` decides at first, within ``limits``; ``tenants`` of them have labels of their own.  The ``clock`` is the
    engine's (ns); without one the time is that of the last step.
    """

    def __init__(
        self,
        model_name: str,
        total_pages: int,
        page_size: int = 0,
        *,
        limits: SchedulerLimits | None = None,
        policy: str = "fcfs",
        tenants: int = 50,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self.total_pages = total_pages
        self.live: dict[RequestId, Live] = {}
        self.running = self.pages = 0
        self.paused = False
        self.step = StepMetrics(limits.token_budget if limits else 0, public_name(policy), page_size)
        self.slo = SloCounts(limits.classes if limits else ())
        self.tenants = TenantTokens(tenants)
        self.waits = Foresight()
        """Of how long requests wait, as far as others waited before them."""
        self.accepted = self.prompt_tokens = self.generation_tokens = self.cached_tokens = self.queried_tokens = 0
        self.preemptions: dict[str, int] = {"swap": 0, "recompute": 0}
        self.ends = dict.fromkeys((*REASONS.values(), *NEVER), 0)
        self.rejections: dict[str, int] = {}
        self.policy = PolicyRecord()
        self.shadow: Shadow | None = None
        self.batches: Callable[[], BatchTally] | None = None
        self.histograms = request_histograms()
        self.transport: dict[str, int] = {}
        """Counted by the transports (``count``): ends of connections by reason, bytes dropped, and so on."""
        self.gauges: dict[str, tuple[str, Callable[[], float]]] = {}
        """What they are, and read when asked: open streams and sockets."""
        self.counters: dict[str, tuple[str, Callable[[], int]]] = {}
        """The same, of what only grows."""
        self.measured: dict[str, tuple[str, Histogram]] = {}
        """The same, of histograms."""
        self.ended: list[Callable[[int, Finished, Live, int], None]] = []
        """Told of every end: its time, what was decided, the request, and when its last token came."""
        self._labels = [model_name, "0"]
        self._page_size = page_size
        self._classes = [each.name for each in limits.classes] if limits else []
        self._deferred = Deferred()
        self._members: dict[RequestId, int] = {}
        """Of the decode group, with the group's steps done before the first that each was in."""
        self.decoding = 0
        """Requests in the decode group, by the latest launch."""
        self._group_steps = self._group_ns = 0
        self._inflight: deque[tuple[Launch, Sequence[RequestId], int, int]] = deque()
        """Each with who samples outside the group, and its tokens of prompts and of the group."""
        self._moved_ns = 0
        self._clock = clock or (lambda: self._moved_ns)
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
            UsePolicy: self._use_policy,
            Pause: self._pause,
        }

    @property
    def waiting(self) -> int:
        return len(self.live) - self.running

    def count(self, name: str, times: int = 1) -> None:
        """Something only a transport sees happened."""
        self.transport[name] = self.transport.get(name, 0) + times

    def stalled_ns(self, now_ns: int) -> int:
        """For how long there has been work without any step finishing; 0 while idle."""
        return now_ns - self._moved_ns if self.live and not self.paused else 0

    def wait_ns(self, now_ns: int) -> int:
        """A guess how long a new request would wait: those before it, at the pace at which requests ended lately.

        Before two have, the pace is that at which those that run would end if the oldest of them were half-way, or
        earlier if it may not say so much more.  0 if nothing runs: nobody knows.
        """
        ended, ahead = self._ended_ns, max(self.waiting, 1)
        if len(ended) > 1:
            return ahead * (ended[-1] - ended[0]) // (len(ended) - 1)
        oldest = next((live for live in self.live.values() if live.running), None) if self.running else None
        gaps = self.histograms["inter_token_latency_seconds"]
        return ahead * left_ns(oldest, gaps, now_ns) // self.running if oldest is not None else 0

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
        self.pages += len(launch.growth) >> 1
        sampled: Sequence[RequestId] = ()
        prefill = decode = 0
        if launch.slices:
            sampled = [id for id, _, _, samples in launch.slices if samples]
            prefill = sum([count for _, _, count, _ in launch.slices])
        if launch.tables:
            self.pages += sum([len(table) for _, table in launch.tables])
        if launch.joined or launch.left:
            self.decoding += len(launch.joined) - len(launch.left)
        if launch.decode:
            decode = self.decoding
        self.step.launch(prefill, decode)
        self._inflight.append((launch, sampled, prefill, decode))

    def _step_done(self, now_ns: int, done: StepDone) -> None:
        self._moved_ns = now_ns
        launch, sampled, prefill, decode = self._inflight.popleft()
        pages = 0
        if launch.swap_in or launch.swap_out:
            pages = sum([len(device) for _, device, _ in (*launch.swap_in, *launch.swap_out)])
        self.step.done(prefill, decode, pages, done.elapsed_ns, done.copy_ns)
        members = self._members
        for id in launch.left:
            since = members.pop(id, -1)
            if since >= 0 and id in self.live:
                live = self.live[id]
                live.last_ns = self._group_ns
                live.given[2] += self._group_steps - since
        if launch.decode:
            if members:
                self.generation_tokens += len(members)
                self._add("inter_token_latency_seconds", now_ns - self._group_ns, len(members))
            for id in launch.joined:
                joining = self.live.get(id)
                if joining is not None:
                    self.generation_tokens += 1
                    self._add("inter_token_latency_seconds", now_ns - joining.last_ns)
                    members[id] = self._group_steps
            self._group_steps += 1
            self._group_ns = now_ns
        for id in sampled:
            self._sampled(now_ns, id)

    def _sampled(self, now_ns: int, id: RequestId) -> None:
        live = self.live.get(id)
        if live is None:
            return
        self.generation_tokens += 1
        live.given[2] += 1
        if live.first_ns >= 0:
            self._add("inter_token_latency_seconds", now_ns - live.last_ns)
        else:
            live.first_ns = now_ns
            self._add("time_to_first_token_seconds", now_ns - live.arrival_ns)
            self._add("request_prefill_time_seconds", now_ns - live.admitted_ns)
        if not live.stands and not live.dropped:
            live.stands = True
            self._deferred.computed(id)
        live.last_ns = now_ns

    def _step_failed(self, now_ns: int, failed: StepFailed) -> None:
        self.step.failed += len(self._inflight)
        self._inflight.clear()
        for id, since in self._members.items():
            live = self.live[id]
            live.last_ns = self._group_ns
            live.given[2] += self._group_steps - since
        self._members.clear()
        self.decoding = 0

    def _pause(self, now_ns: int, event: Pause) -> None:
        self.paused = event.on
        self._moved_ns = now_ns

    def _use_policy(self, now_ns: int, event: UsePolicy) -> None:
        self.policy.swapped(now_ns, event)
        self.step.use_policy(public_name(event.name))

    # ------------------------------------------------------------------------------------------- requests

    def _submitted(self, now_ns: int, event: Submitted) -> None:
        if not self.live:
            self._moved_ns = now_ns
            self._ended_ns.clear()  # a pace is that of a busy engine
        self.accepted += 1
        foreseen_ns = self.wait_ns(now_ns) if len(self.live) > self.running else 0
        given = self.tenants.row(event.tenant)
        self.live[event.request] = Live(
            now_ns, event.prompt_tokens, event.max_tokens, event.parent, event.klass, given, foreseen_ns
        )
        parent = self.live.get(event.parent)
        if parent is not None and not parent.stands:
            self._deferred.add(event.request, event.parent)

    def _rejected(self, now_ns: int, rejected: Rejected) -> None:
        self.accepted -= 1
        live = self.live.pop(rejected.request)
        self._deferred.end(rejected.request)
        self.slo.refused(live.klass)
        self._refuse(rejected.code)

    def _refuse(self, code: str) -> None:
        self.rejections[code] = self.rejections.get(code, 0) + 1

    def _admitted(self, now_ns: int, admitted: Admitted) -> None:
        live = self.live[admitted.request]
        self._run(live, True)
        live.dropped = False
        self.pages -= admitted.shared
        if live.admitted_ns < 0:
            live.admitted_ns = now_ns
            self._add("request_queue_time_seconds", now_ns - live.arrival_ns)
            if live.foreseen_ns:
                self.waits.judge(live.foreseen_ns, now_ns - live.arrival_ns)
            self._prompt(live)
            live.given[0] += live.prompt_tokens - admitted.cached
            live.given[1] += admitted.cached
            if not live.parent:  # what choices of a prompt share is not looked up
                self.cached_tokens += admitted.cached
                self.queried_tokens += live.prompt_tokens

    def _prompt(self, live: Live) -> None:
        self.prompt_tokens += live.prompt_tokens
        self.histograms["request_prompt_tokens"].add(live.prompt_tokens)

    def _run(self, live: Live, runs: bool) -> None:
        self.running += runs - live.running
        live.running = runs

    def _preempted(self, now_ns: int, preempted: Preempted) -> None:
        live = self.live[preempted.request]
        self._run(live, False)
        live.preemptions += 1
        live.dropped = preempted.mode == "recompute"
        self.preemptions[preempted.mode] += 1
        self.pages -= preempted.pages

    def _resumed(self, now_ns: int, resumed: Resumed) -> None:
        self._run(self.live[resumed.request], True)

    def _finished(self, now_ns: int, finished: Finished) -> None:
        live = self.live.pop(finished.request)
        self._run(live, False)
        self.pages -= finished.pages
        last_ns = self._last_ns(finished.request, live)
        self._ended_ns.append(now_ns)
        self._deferred.end(finished.request)
        if live.admitted_ns < 0:
            self._prompt(live)
        waited_ns = (now_ns if live.first_ns < 0 else live.first_ns) - live.arrival_ns
        spoke_ns = last_ns - live.first_ns
        self.slo.ended(live.klass, finished.reason, live.first_ns, waited_ns, spoke_ns, finished.tokens)
        for tell in self.ended:
            tell(now_ns, finished, live, last_ns)
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
                self._add("request_time_per_output_token_seconds", spoke_ns // (finished.tokens - 1))

    def _last_ns(self, id: RequestId, live: Live) -> int:
        """When an ending request sampled last; it leaves the group, if it was in it."""
        since = self._members.pop(id, -1)
        if since < 0:
            return live.last_ns
        live.given[2] += self._group_steps - since
        return self._group_ns

    # ------------------------------------------------------------------------------------------- exposition

    def collect(self) -> Iterable[Metric]:
        """Every family, for a prometheus registry."""
        self._settle()
        make, now_ns = Families(self._labels), self._clock()
        yield make.gauge("vllm:num_requests_running", "Requests on the device.", self.running)
        yield from queue_families(make, now_ns, self.waiting, len(self._deferred), self.live, self._classes)
        usage = self.pages / max(self.total_pages, 1)
        yield make.gauge("vllm:kv_cache_usage_perc", "Share of KV pages in use, 0 to 1.", usage)
        shape = (str(self._page_size), str(self.total_pages))
        yield make.gauges("vllm:cache_config_info", "Pages, their size.", ["block_size", "num_gpu_blocks"], {shape: 1})
        yield make.gauges("vllm:engine_sleep_state", "1 for the state it is in.", ["sleep_state"], by_one(SLEEP_STATES))
        yield make.gauge("stepwell:paused", "1 while an operator has paused the engine.", self.paused)
        yield from self._counters(make)
        yield from self.step.collect(make, self.waits)
        yield from self.slo.collect(make)
        yield from self.tenants.collect(make)
        yield from self.policy.collect(self._labels)
        yield from shadow_families(self.shadow, self._labels)
        yield from batch_families(self.batches, self._labels)
        for name, (text, read) in self.gauges.items():
            yield make.gauge(name, text, read())
        for name, (text, count) in self.counters.items():
            yield make.counter(name, text, count())
        for name, (text, histogram) in self.measured.items():
            yield make.histogram(name, text, histogram)
        yield from request_families(make, self.histograms)

    def _settle(self) -> None:
        """What members of the group were given so far."""
        for id, since in self._members.items():
            if id in self.live:
                self.live[id].given[2] += self._group_steps - since
                self._members[id] = self._group_steps

    def _counters(self, make: Families) -> Iterable[Metric]:
        for name, text, value in (
            ("vllm:prompt_tokens", "Prompt tokens of requests taken in.", self.prompt_tokens),
            ("vllm:generation_tokens", "Tokens sampled.", self.generation_tokens),
            ("vllm:num_preemptions", "Requests taken off the device.", sum(self.preemptions.values())),
            ("vllm:prefix_cache_queries", "Prompt tokens looked up in the cache.", self.queried_tokens),
            ("vllm:prefix_cache_hits", "Prompt tokens found in the cache.", self.cached_tokens),
            ("vllm:prompt_tokens_cached", "Prompt tokens not computed again.", self.cached_tokens),
            ("stepwell:requests_accepted", "Requests not refused; each ends once.", self.accepted),
        ):
            yield make.counter(name, text, value)
        for name, text, label, values in (
            ("vllm:request_success", "Requests that ended, by how.", "finished_reason", self.ends),
            ("vllm:admission_rejections", "Requests refused by the scheduler.", "reason", self.rejections),
            ("stepwell:preemptions", "Requests taken off the device, by how.", "mode", self.preemptions),
            ("stepwell:transport", "What connections did.", "event", self.transport),
        ):
            yield make.counters(name, text, [label], by_one(values))

    def exposition(self) -> bytes:
        """The text of ``/metrics``."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)
