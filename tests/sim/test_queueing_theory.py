"""The simulator as a queue that theory knows: Poisson arrivals, one server, constant service (M/D/1).

Pollaczek and Khinchine: the mean wait is rho / (2 mu (1 - rho)), with rho = lambda / mu.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from stepwell.core.events import Event
from stepwell.core.instructions import Instruction
from stepwell.core.limits import SchedulerLimits
from stepwell.core.scheduler import Scheduler
from stepwell.sim.cost.linear import Linear
from stepwell.sim.loop import Simulator
from stepwell.sim.workload.request import TraceRequest
from stepwell.tests.helpers.runs import build
from stepwell.tests.helpers.timeline import Timeline

SERVICE_NS = 1_000_000
CONSTANT = Linear.Options(
    base_ns=SERVICE_NS, prefill_token_ns=0, prefill_request_ns=0, decode_request_ns=0, kv_token_ps=0, swap_page_ns=0
)
COUNT = 12_000
BATCHES = 24


class Occupancy:
    """The time integral of the number of requests in the house, as the scheduler counts them."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.area = 0
        self._scheduler = scheduler
        self._last_ns = 0
        self._inside = 0

    def __call__(self, now_ns: int, events: Sequence[Event], out: Sequence[Instruction]) -> None:
        self.area += self._inside * (now_ns - self._last_ns)
        self._last_ns, self._inside = now_ns, len(self._scheduler.state.requests)


def serve(rho: float, seed: int) -> tuple[list[int], int, int]:
    """Time from arrival to end of every request, the integral of their number, and when the last one ended."""
    rng = random.Random(seed)
    now, requests = 0.0, []
    for _ in range(COUNT):
        now += rng.expovariate(rho / SERVICE_NS)
        requests.append(TraceRequest(round(now), 1, 1))
    scheduler = build(limits=SchedulerLimits(running_limit=1, token_budget=1))
    timeline, occupancy = Timeline(), Occupancy(scheduler)
    simulator = Simulator(scheduler, Linear(CONSTANT), requests, observers=[timeline, occupancy])
    simulator.run()
    stays = [story.end_ns - story.arrival_ns for story in timeline.stories.values()]
    return stays, occupancy.area, simulator.now_ns


@pytest.mark.parametrize("rho", [0.5, 0.8])
def test_mean_wait_is_that_of_an_m_d_1_queue(rho: float) -> None:
    stays, area, end_ns = serve(rho, seed=20)
    waits = [stay - SERVICE_NS for stay in stays]
    assert min(waits) == 0
    mean = sum(waits) / COUNT
    # Waits of neighbours go together, so the standard error comes from the means of long batches.
    size = COUNT // BATCHES
    means = [sum(waits[at : at + size]) / size for at in range(0, COUNT, size)]
    error = math.sqrt(sum((each - mean) ** 2 for each in means) / (BATCHES - 1) / BATCHES)
    expected = rho * SERVICE_NS / (2 * (1 - rho))
    assert error < 0.1 * expected, "too few requests to tell"
    assert abs(mean - expected) < 3 * error
    # Little's law, exactly, since the house is empty before and after: L = lambda W.
    assert area == sum(stays)
    assert area / end_ns == pytest.approx(rho + rho * rho / (2 * (1 - rho)), rel=0.15)
