"""ME-2: whatever happens to a scheduler, its metrics add up at every moment, never fall, and settle at zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis.stateful import initialize, run_state_machine_as_test

from stepwell.core.events import Event
from stepwell.core.instructions import Instruction
from stepwell.core.metrics import ServingMetrics
from stepwell.tests.stateful.rows import must
from stepwell.tests.stateful.test_scheduler_machine import SETUPS, SchedulerMachine
from stepwell.tests.stateful.world import Setup, World

Samples = dict[tuple[str, ...], float]


def samples_of(metrics: ServingMetrics) -> tuple[Samples, Samples]:
    """Gauges, and what only grows, by name and labels."""
    gauges: Samples = {}
    growing: Samples = {}
    for family in metrics.collect():
        for sample in family.samples:
            into = gauges if family.type == "gauge" else growing
            into[sample.name, *map(str, sorted(sample.labels.items()))] = sample.value
    return gauges, growing


class Watched:
    """The metrics of a world, held to the laws after every batch of events."""

    def __init__(self, world: World) -> None:
        self.scheduler, self.device = world.scheduler, world.device
        state = self.scheduler.state
        total = state.allocator.total_pages
        self.metrics = ServingMetrics("m", total, 1, limits=state.limits, policy=world.setup.policy, tenants=2)
        self.growing: Samples = {}

    def __call__(self, now_ns: int, events: Sequence[Event], out: Sequence[Instruction]) -> None:
        metrics, state = self.metrics, self.scheduler.state
        metrics.observe(now_ns, events, out)
        gauges, growing = samples_of(metrics)
        for name, value in self.growing.items():
            must(growing.get(name, 0.0) >= value, f"{name} fell from {value} to {growing.get(name)}")
        self.growing = growing
        must(metrics.running + metrics.waiting == len(state.requests), "live requests are counted")
        ended = sum(metrics.ends.values()) + metrics.rejections.get("policy", 0)
        must(metrics.accepted == ended + len(metrics.live), f"accepted {metrics.accepted}, ended {ended}")
        must(metrics.decoding == len(self.device.members), f"a step decodes {metrics.decoding} requests")
        must(len(metrics._deferred) == len(state.followers.all()), f"{len(metrics._deferred)} are deferred")
        must(0 <= metrics.pages <= metrics.total_pages, f"{metrics.pages} pages are in use")
        must(0 <= metrics.cached_tokens <= metrics.queried_tokens, "the hit rate is between 0 and 1")
        rows = metrics.tenants.rows.values()
        given = sum(row[2] for row in rows)
        must(given == metrics.generation_tokens, f"tenants were given {given} of {metrics.generation_tokens} tokens")
        must(metrics.histograms["time_to_first_token_seconds"].count <= metrics.accepted, "one first token each")
        must(all(metrics.slo.attained[each] <= metrics.slo.judged[each] for each in metrics.slo.judged), "judged")
        must(metrics.paused == self.scheduler.paused, "the pause is told")
        reasons = sum(value for (name, *_), value in gauges.items() if name == "vllm:num_requests_waiting_by_reason")
        must(reasons == metrics.waiting, f"{reasons} wait for a reason, {metrics.waiting} in all")

    def idle(self) -> None:
        """Everybody has ended."""
        gauges, growing = samples_of(self.metrics)
        steady = ("vllm:cache_config_info", "vllm:engine_sleep_state", "stepwell:paused")
        left = {name: value for name, value in gauges.items() if value and name[0] not in steady}
        must(not left, f"idle, and yet {left}")
        steps = sum(value for (name, *_), value in growing.items() if name == "stepwell:steps_total")
        counted = sum(value for (name, *_), value in growing.items() if name == "vllm:iteration_tokens_total_count")
        must(steps == counted == self.scheduler.state.next_step - 1, f"{counted} of {steps} steps have a size")


class MetricsMachine(SchedulerMachine):
    """Steps are reported one by one, as a live engine does."""

    watched: Watched

    @initialize(setup=SETUPS)
    def begin(self, setup: Setup) -> None:
        self.world = World(replace(setup, honour_repeats=False))
        self.watched = Watched(self.world)
        self.world.watching.append(self.watched)

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "watched"):
            self.watched.idle()


def test_me_2_metrics_add_up_at_every_moment() -> None:
    modest = settings(max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(MetricsMachine, settings=modest)
