"""The simulator as a queue that theory knows: Poisson arrivals, and one server, several, or one that is shared.

A request of n output tokens takes n steps.  Where steps last the same whoever is in them, a seat is a server, and n
steps are its service: exponential, if n is drawn so.  Where a step lasts as long as it has requests, the server is
shared.  Draws come from fixed seeds; waits of neighbours go together, so the standard error comes from the means of
long batches.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from stepwell.core.events import Event, Submitted
from stepwell.core.instructions import Finished, Instruction
from stepwell.core.limits import SchedulerLimits
from stepwell.core.scheduler import Scheduler
from stepwell.sim.cost.linear import Linear
from stepwell.sim.cost.linear_options import LinearOptions
from stepwell.sim.loop import Simulator
from stepwell.sim.workload.request import TraceRequest
from stepwell.tests.helpers.runs import Pool, build

STEP_NS = 1_000_000
ALIKE = Linear.Options(
    base_ns=STEP_NS, prefill_token_ns=0, prefill_request_ns=0, decode_request_ns=0, kv_token_ps=0, swap_page_ns=0
)
"""A step lasts as long whoever is in it."""
SHARED = Linear.Options(
    base_ns=1,
    prefill_token_ns=STEP_NS,
    prefill_request_ns=0,
    decode_request_ns=STEP_NS,
    kv_token_ps=0,
    swap_page_ns=0,
)
"""A step lasts as long as it has requests (a prompt is one token)."""
COUNT = 12_000
BATCHES = 24
MEAN = 200
"""Tokens of a long answer: whoever arrives within a step waits for its end, which is half a step on average."""

SLOW = pytest.mark.slow

Lengths = Callable[[random.Random], int]


class Doorkeeper:
    """Notes who comes and goes, and the time integral of the number of requests, as the scheduler counts them."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.area = 0
        self.came: dict[int, int] = {}
        self.went: dict[int, int] = {}
        self._scheduler = scheduler
        self._last_ns = 0
        self._inside = 0

    def __call__(self, now_ns: int, events: Sequence[Event], out: Sequence[Instruction]) -> None:
        self.area += self._inside * (now_ns - self._last_ns)
        self._last_ns, self._inside = now_ns, len(self._scheduler.state.requests)
        for event in events:
            if isinstance(event, Submitted):
                self.came[event.request] = now_ns
        for each in out:
            if isinstance(each, Finished):
                self.went[each.request] = now_ns


@dataclass
class Served:
    """Each request's time from arrival to end, and its tokens; the integral of their number; when the last ended."""

    stays: list[int]
    tokens: list[int]
    area: int
    end_ns: int

    @property
    def waits(self) -> list[int]:
        """Time in the house, less what its steps take if they last the same."""
        return [stay - tokens * STEP_NS for stay, tokens in zip(self.stays, self.tokens, strict=True)]


def constant(rng: random.Random) -> int:
    return 1


def exponential(rng: random.Random) -> int:
    """Of mean ``MEAN``, to whole tokens."""
    return max(1, round(rng.expovariate(1 / MEAN)))


def two_kinds(rng: random.Random) -> int:
    """Of mean ``MEAN``: nine of ten are half as long, and one is eleven times as long as those."""
    return MEAN // 2 if rng.random() < 0.9 else 11 * MEAN // 2


def serve(rho: float, seats: int, lengths: Lengths, mean: float, cost: LinearOptions, seed: int = 20) -> Served:
    """``rho`` is the load of each seat; of the whole server if it is shared."""
    rng = random.Random(seed)
    servers = 1 if cost is SHARED else seats
    now, requests = 0.0, []
    for _ in range(COUNT):
        now += rng.expovariate(rho * servers / (mean * STEP_NS))
        requests.append(TraceRequest(round(now), 1, lengths(rng)))
    limits = SchedulerLimits(running_limit=seats, token_budget=seats)
    scheduler = build(limits=limits, pool=Pool(2 * seats, 40 * MEAN))
    door = Doorkeeper(scheduler)
    simulator = Simulator(scheduler, Linear(cost), requests, observers=[door])
    simulator.run()
    stays = [door.went[id] - came_ns for id, came_ns in door.came.items()]
    served = Served(stays, [request.output_tokens for request in requests], door.area, simulator.now_ns)
    # Little's law, exactly, since the house is empty before and after: L = lambda W.
    assert served.area == sum(stays)
    return served


def agree(values: Sequence[float], expected: float, *, within: float, bias: float = 0.0) -> None:
    """Their mean is what theory expects, up to three standard errors (each at most ``within`` of it) and ``bias``."""
    mean = sum(values) / len(values)
    size = len(values) // BATCHES
    means = [sum(values[at : at + size]) / size for at in range(0, size * BATCHES, size)]
    centre = sum(means) / BATCHES
    error = math.sqrt(sum((each - centre) ** 2 for each in means) / (BATCHES - 1) / BATCHES)
    assert error < within * expected, f"too few requests to tell: {error / expected:.3f}"
    assert abs(mean - expected) < 3 * error + bias, f"{mean / expected:.3f} of what is expected, error {error:.0f}"


def erlang_c(seats: int, rho: float) -> float:
    """The share of arrivals that find all seats taken (Erlang, 1917)."""
    load = seats * rho
    full = load**seats / math.factorial(seats) / (1 - rho)
    return full / (sum(load**k / math.factorial(k) for k in range(seats)) + full)


@pytest.mark.parametrize("rho", [0.5, 0.8])
def test_mean_wait_is_that_of_an_m_d_1_queue(rho: float) -> None:
    """Pollaczek and Khinchine: rho / (2 mu (1 - rho)), with rho = lambda / mu."""
    served = serve(rho, 1, constant, 1, ALIKE)
    assert min(served.waits) == 0
    agree(served.waits, rho * STEP_NS / (2 * (1 - rho)), within=0.1)
    assert served.area / served.end_ns == pytest.approx(rho + rho * rho / (2 * (1 - rho)), rel=0.15)


@pytest.mark.parametrize("rho", [0.5, pytest.param(0.8, marks=SLOW)])
def test_mean_wait_is_that_of_an_m_m_1_queue(rho: float) -> None:
    """rho / (mu (1 - rho)): twice that of constant service."""
    served = serve(rho, 1, exponential, MEAN, ALIKE)
    assert min(served.waits) == 0
    agree(served.waits, rho * MEAN * STEP_NS / (1 - rho), within=0.15)


@pytest.mark.parametrize(("seats", "rho"), [(2, 0.7), pytest.param(4, 0.8, marks=SLOW)])
def test_mean_wait_is_that_of_an_m_m_c_queue(seats: int, rho: float) -> None:
    """Erlang C / (c mu - lambda).  Whoever arrives within a step also waits for its end: at most one step."""
    served = serve(rho, seats, exponential, MEAN, ALIKE)
    waiting = erlang_c(seats, rho)
    agree(served.waits, waiting * MEAN * STEP_NS / (seats * (1 - rho)), within=0.2, bias=STEP_NS)
    late = [float(wait > STEP_NS) for wait in served.waits]
    agree(late, waiting, within=0.05, bias=0.02)


def test_erlang_c_by_hand() -> None:
    """One server is busy with probability rho; two at rho = 1/2: 1 / (2 · 1/2) / (1 + 1 + 1) = 1/3."""
    assert erlang_c(1, 0.7) == pytest.approx(0.7)
    assert erlang_c(2, 0.5) == pytest.approx(1 / 3)


@pytest.mark.parametrize("lengths", [exponential, pytest.param(two_kinds, marks=SLOW)])
def test_a_shared_server_is_blind_to_the_distribution(lengths: Lengths) -> None:
    """M/G/1 processor sharing (Kleinrock, 1967): who needs x stays x / (1 - rho) on average, whatever others need.

    A request comes in at the end of a step, and each of its steps lasts whole: the bias is a few steps.
    """
    rho = 0.6
    served = serve(rho, 256, lengths, MEAN, SHARED)
    pairs = list(zip(served.stays, served.tokens, strict=True))
    longest = 40 * STEP_NS
    slow = [stay / tokens for stay, tokens in pairs if tokens > MEAN]
    agree(slow, STEP_NS / (1 - rho), within=0.08, bias=longest / MEAN)
    fast = [stay / tokens for stay, tokens in pairs if MEAN // 4 < tokens <= MEAN // 2]
    agree(fast, STEP_NS / (1 - rho), within=0.08, bias=longest / (MEAN // 4))
    agree(served.stays, MEAN * STEP_NS / (1 - rho), within=0.1, bias=longest)
