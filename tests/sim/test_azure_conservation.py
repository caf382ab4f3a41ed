"""Nothing is lost on a whole production trace under memory pressure: Azure's conversations of 2023, 19,366 requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import msgspec
import pytest

from stepwell.core.events import Event
from stepwell.core.instructions import Finished, Instruction, Launch, Preempted
from stepwell.core.limits import SchedulerLimits
from stepwell.core.protocols import BatchShape
from stepwell.sim.cost.linear import Linear
from stepwell.sim.loop import Simulator
from stepwell.sim.workload.request import TraceRequest, Workload
from stepwell.sim.workload.trace import read_trace
from stepwell.sim.workload.transform import scale_rate
from stepwell.tests.helpers.runs import Pool, assert_empty, build

TRACE = Path(__file__).resolve().parents[2].parent / "shared" / "traces" / "azure_llm_2023_conv.csv"
POOL = Pool(pages=2048, page_size=16, host_pages=4096)
SATURATED_PER_S = 9.45
"""What ``fcfs`` gets through in this pool when everybody is there at once; one of the tests looks again."""

pytestmark = pytest.mark.skipif(not TRACE.exists(), reason=f"the trace is not there: {TRACE}")


@cache
def trace() -> Workload:
    return read_trace(TRACE, format="azure")


def at_rate(requests_per_s: float) -> list[TraceRequest]:
    return scale_rate(trace(), requests_per_s / trace().profile().rate_per_s).requests


class CountingCost:
    """The reference step time, counting the token positions that were computed.

    Of a step with copies the simulator asks twice: the second time without them, to know what they add.
    """

    def __init__(self) -> None:
        self._cost = Linear()
        self.computed = 0
        self.swap_pages = 0
        self._rest: BatchShape | None = None

    def step_ns(self, shape: BatchShape) -> int:
        if shape != self._rest:
            self.computed += shape.prefill_tokens + shape.decode_requests
            self.swap_pages += shape.swap_pages
        self._rest = msgspec.structs.replace(shape, swap_pages=0) if shape.swap_pages else None
        return self._cost.step_ns(shape)

    def run_ns(self, shape: BatchShape, start_ns: int, steps: int, until_ns: int) -> list[int]:
        ends = self._cost.run_ns(shape, start_ns, steps, until_ns)
        if len(ends) > 1:  # else the simulator takes a single step and asks for its time
            self.computed += shape.prefill_tokens + len(ends) * shape.decode_requests
            self.swap_pages += shape.swap_pages
        return ends


class Tally:
    """Counts ends, preemptions and copies."""

    def __init__(self) -> None:
        self.ends: dict[int, Finished] = {}
        self.preemptions: Counter[int] = Counter()
        self.modes: Counter[str] = Counter()
        self.lost = 0
        self.copied: Counter[str] = Counter()

    def __call__(self, now_ns: int, events: Sequence[Event], out: Sequence[Instruction]) -> None:
        for it in out:
            if isinstance(it, Finished):
                assert it.request not in self.ends, f"request {it.request} ended twice"
                self.ends[it.request] = it
            elif isinstance(it, Preempted):
                # A swap for a better class loses no work and is not bounded.
                self.preemptions[it.request] += (it.mode, it.reason) != ("swap", "gives way")
                self.modes[it.mode] += 1
                self.lost += it.tokens if it.mode == "recompute" else 0
            elif isinstance(it, Launch) and (it.swap_out or it.swap_in):
                self.copied["out"] += sum(len(pages) for _, pages, _ in it.swap_out)
                self.copied["in"] += sum(len(pages) for _, pages, _ in it.swap_in)


def run(policy: str, requests: list[TraceRequest]) -> tuple[Tally, float]:
    """Runs to the end and checks every balance.  Also returns requests per second."""
    limits = SchedulerLimits()
    scheduler = build(policy, pool=POOL, limits=limits)
    tally, cost = Tally(), CountingCost()
    simulator = Simulator(scheduler, cost, requests, observers=[tally])
    simulator.run()
    assert_empty(scheduler)
    assert sorted(tally.ends) == list(range(1, len(requests) + 1))
    for id, request in enumerate(requests, 1):
        end = tally.ends[id]
        assert (end.reason, end.tokens) == ("stop", request.output_tokens), request
    # The last token of a request is not fed back; whatever recomputation threw away was computed once more.
    needed = sum(request.prompt_tokens + request.output_tokens - 1 for request in requests)
    assert cost.computed == needed + tally.lost
    assert tally.copied["out"] == tally.copied["in"]
    assert cost.swap_pages == tally.copied["out"] + tally.copied["in"]
    assert max(tally.preemptions.values(), default=0) <= limits.max_preemptions
    return tally, len(requests) * 1e9 / simulator.now_ns


@pytest.mark.parametrize(
    "load", [pytest.param(0.5, marks=pytest.mark.slow), pytest.param(0.9, marks=pytest.mark.slow), 1.2]
)
@pytest.mark.parametrize("policy", ["fcfs", "swap", "chat-batch"])
def test_conservation_on_the_azure_conversations(policy: str, load: float) -> None:
    requests = at_rate(load * SATURATED_PER_S)
    if policy == "chat-batch":
        for id, request in enumerate(requests):
            request.klass = "batch" if id % 3 == 0 else "chat"
    tally, _ = run(policy, requests)
    if load > 1:
        assert sum(tally.preemptions.values()) > 100, "the pool is too large to tell anything"
    assert set(tally.modes) <= ({"recompute"} if policy == "fcfs" else {"swap", "recompute"})


@pytest.mark.slow
def test_saturated_rate_is_as_documented() -> None:
    _, per_s = run("fcfs", at_rate(1000.0))
    assert per_s == pytest.approx(SATURATED_PER_S, rel=0.01)
