"""Plays generated workloads through the scheduler, in front of a device that takes one tick for each step.

The stage of the conformance suite of policies (``testing_policy``); nothing here judges.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st

from stepwell.core import registry
from stepwell.core.config import MemoryConfig
from stepwell.core.events import Cancel, Event, StepDone, StepFailed, Submitted, Timer, UsePolicy
from stepwell.core.instructions import Finished, Instruction, Launch, PolicyFault, Rejected, Wake
from stepwell.core.invariants import check_state
from stepwell.core.limits import SchedulerLimits, TenantLimits
from stepwell.core.protocols import KVAllocator, NotNow, SchedulerPolicy
from stepwell.core.scheduler import Scheduler
from stepwell.core.types import NS_PER_MS, NS_PER_S, RequestId, StepId

Turn = tuple[int, list[Instruction]]
"""(time in ns, what the scheduler decided)."""

Cast = Callable[[Scheduler], SchedulerPolicy]
"""Makes the policy to play with; called again when the policy is to be rebuilt."""


class ConformanceError(AssertionError):
    """The plugin does not do what its contract or its promises say; the text says what and when."""


class Arrival(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request.  ``tick`` is when it comes; the client leaves ``patience`` ticks later (0: never).

    ``again``: it is another choice of the prompt of the arrival before it, if that is as long.
    """

    tick: int
    prompt: int
    max_tokens: int
    output: int
    klass: str = "chat"
    patience: int = 0
    tenant: str = "tenant"
    priority: int = 0
    program: str = ""
    again: bool = False


class Scenario(msgspec.Struct, frozen=True, omit_defaults=True):
    """A workload and the machine it meets; small, so that everything runs short of everything."""

    arrivals: tuple[Arrival, ...]
    allocator: str = "paged"
    depth: int = 1
    pages: int = 8
    page_size: int = 2
    host_pages: int = 6
    token_budget: int = 8
    running_limit: int = 4
    tick_ns: int = 10 * NS_PER_MS
    fails: tuple[StepId, ...] = ()
    rebuilds: tuple[int, ...] = ()

    def limits(self) -> SchedulerLimits:
        return SchedulerLimits(
            token_budget=max(self.token_budget, self.running_limit),
            running_limit=self.running_limit,
            depth=self.depth,
            max_preemptions=3,
            max_failures=0,
            seed=1,
            tenants=(TenantLimits("another", 2.0),),
        )

    def patience_of_the_house(self) -> int:
        """Ticks after which everybody should have ended: each token computed alone, as often as preemption allows."""
        work = sum(each.prompt + min(each.max_tokens, each.output) for each in self.arrivals)
        last = max((each.tick for each in self.arrivals), default=0)
        return last + 100 + 8 * (len(self.fails) + 1) * (work + 4)


class Stingy:
    """An allocator that refuses every third request for room, whatever it said before."""

    def __init__(self, allocator: KVAllocator) -> None:
        self._it = allocator
        self._asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._it, name)

    def _refuses(self) -> bool:
        self._asked += 1
        return self._asked % 3 == 0

    def reserve(self, request: RequestId, tokens: int, limit: int, keys: Sequence[int] = ()) -> object:
        return NotNow(1) if self._refuses() else self._it.reserve(request, tokens, limit, keys)

    def fork(self, parent: RequestId, child: RequestId, shared: int, tokens: int, limit: int) -> object:
        return NotNow(1) if self._refuses() else self._it.fork(parent, child, shared, tokens, limit)

    def swap_in(self, request: RequestId, tokens: int, limit: int, after: StepId) -> object:
        return NotNow(1) if self._refuses() else self._it.swap_in(request, tokens, limit, after)

    def swap_out(self, request: RequestId, tokens: int, after: StepId) -> object:
        return NotNow(1) if self._refuses() else self._it.swap_out(request, tokens, after)


class Device:
    """Knows the true output lengths.  ``launch`` and ``done`` are what a backend does, less the arithmetic."""

    def __init__(self) -> None:
        self.output: dict[RequestId, int] = {}
        self.flights: deque[tuple[StepId, list[RequestId]]] = deque()
        self._members: dict[RequestId, None] = {}
        self._made: dict[RequestId, int] = {}

    def launch(self, it: Launch) -> None:
        for id in it.left:
            self._members.pop(id, None)
        self._members.update(dict.fromkeys(it.joined))
        sampled = list(self._members) if it.decode else []
        sampled += [id for id, _, _, samples in it.slices if samples]
        self.flights.append((it.step, sampled))

    def done(self, fails: Sequence[StepId]) -> Event:
        step, sampled = self.flights.popleft()
        if step in fails:
            self.flights.clear()
            self._members.clear()
            return StepFailed(step, [], "scripted")
        for id in sampled:
            self._made[id] = self._made.get(id, 0) + 1
        return StepDone(step, [id for id in sampled if self._made[id] == self.output.get(id)], 1)


class Play:
    """One performance of a scenario; ``turns`` is the record of it.

    ``cast`` makes the policy.  ``rebuilds`` says what happens at the scenario's rebuild ticks: nothing, a timer, or a
    policy made anew.
    """

    def __init__(
        self,
        scenario: Scenario,
        cast: Cast,
        *,
        honour_repeats: bool = True,
        stingy: bool = False,
        rebuilds: Event | None = None,
    ) -> None:
        self.scenario = scenario
        self.turns: list[Turn] = []
        self.device = Device()
        self.live: dict[RequestId, None] = {}
        self.now_ns = 0
        self._rebuilds = rebuilds
        self._wake_ns = 0
        self._next = 0
        self._cast = cast
        self.scheduler = Scheduler(
            scenario.limits(),
            make_allocator(scenario, stingy=stingy),
            self._make_policy,
            "tested",
            {},
            honour_repeats=honour_repeats,
        )
        self.scheduler.state.policy = cast(self.scheduler)

    def _make_policy(self, name: str, options: dict[str, object]) -> SchedulerPolicy:
        return self._cast(self.scheduler) if hasattr(self, "scheduler") else _Nobody()

    def run(self) -> list[Turn]:
        """To the end; raises ``ConformanceError`` if the policy breaks a rule or somebody never ends."""
        tick = 0
        bound = self.scenario.patience_of_the_house()
        while self._next < len(self.scenario.arrivals) or self.live or self.device.flights:
            self.tick(tick, self._script(tick))
            tick += 1
            if tick > bound:
                raise ConformanceError(f"requests {list(self.live)} have not ended after {tick} steps")
        return self.turns

    def tick(self, tick: int, script: Sequence[Event]) -> list[Instruction]:
        """Let one tick pass: the oldest step in flight ends, and ``script`` happens."""
        self.now_ns = tick * self.scenario.tick_ns
        events: list[Event] = [self.device.done(self.scenario.fails)] if self.device.flights else []
        events += script
        if 0 < self._wake_ns <= self.now_ns:
            self._wake_ns = 0
            events.append(Timer())
        if not events:
            return []
        for event in events:
            if isinstance(event, Submitted):
                self.live[event.request] = None
        out = self.scheduler.handle(self.now_ns, events)
        check_state(self.scheduler.state)
        if out:
            self.turns.append((self.now_ns, out))
        for it in out:
            self._follow(it)
        return out

    def _script(self, tick: int) -> list[Event]:
        arrivals = self.scenario.arrivals
        events: list[Event] = [
            Cancel(id)
            for id, each in enumerate(arrivals[: self._next], 1)
            if each.patience and each.tick + each.patience == tick
        ]
        if self._rebuilds is not None and tick in self.scenario.rebuilds:
            events.append(self._rebuilds)
        while self._next < len(arrivals) and arrivals[self._next].tick <= tick:
            each = arrivals[self._next]
            self._next += 1
            self.device.output[self._next] = each.output
            first = self._first(self._next)
            keys, parent = self._keys(each.prompt, first), first if first < self._next else 0
            asked = (each.prompt, each.max_tokens, each.klass, each.tenant, 0, keys, each.priority, each.program)
            events.append(Submitted(self._next, *asked, parent))
        return events

    def _first(self, id: RequestId) -> RequestId:
        """The first choice of a request's prompt."""
        arrivals = self.scenario.arrivals
        while id > 1 and arrivals[id - 1].again and arrivals[id - 2].prompt == arrivals[id - 1].prompt:
            id -= 1
        return id

    def _keys(self, prompt: int, id: RequestId) -> list[int]:
        """Of a request's prompt, for who reuses prefixes: the beginning of one of three long ones."""
        if not self.scheduler.state.allocator.reuses_prefixes:
            return []
        first = id % 3 * 1000 + 1
        return list(range(first, first + prompt // self.scheduler.state.allocator.key_tokens))

    def _follow(self, it: Instruction) -> None:
        if isinstance(it, Launch):
            self.device.launch(it)
        elif isinstance(it, Finished | Rejected):
            if it.request not in self.live:
                raise ConformanceError(f"request {it.request} ended twice")
            del self.live[it.request]
            self.device.output.pop(it.request, None)
        elif isinstance(it, Wake):
            self._wake_ns = it.at_ns
        elif isinstance(it, PolicyFault):
            raise ConformanceError(f"broke the rule {it.rule!r} in the plan for step {it.step}: {it.detail}")


class _Nobody:
    """Keeps the chair until the scheduler exists."""

    promises: Any = None

    def observe(self, event: object) -> None: ...
    def plan(self, view: object) -> Any: ...


def make_allocator(scenario: Scenario, *, stingy: bool = False) -> KVAllocator:
    made = registry.make_allocator(
        MemoryConfig(
            allocator=scenario.allocator,
            pages=scenario.pages,
            page_size=scenario.page_size,
            host_pages=scenario.host_pages,
        )
    )
    return Stingy(made) if stingy else made  # type: ignore[return-value]


REBUILD = UsePolicy("tested", {}, "conformance")


def _in_order(arrivals: Sequence[Arrival]) -> tuple[Arrival, ...]:
    """By time; other choices of a prompt have its length."""
    ordered = sorted(arrivals, key=lambda each: each.tick)
    for index in range(1, len(ordered)):
        if ordered[index].again:
            ordered[index] = msgspec.structs.replace(ordered[index], prompt=ordered[index - 1].prompt)
    return tuple(ordered)


def scenarios(allocators: Sequence[str]) -> st.SearchStrategy[Scenario]:
    """Workloads of up to a dozen requests that meet shortages of everything."""
    arrival = st.builds(
        Arrival,
        tick=st.integers(0, 30),
        prompt=st.integers(1, 12),
        max_tokens=st.integers(1, 12),
        output=st.integers(1, 12),
        klass=st.sampled_from(("chat", "batch")),
        patience=st.sampled_from((0, 0, 0, 1, 5, 20)),
        tenant=st.sampled_from(("tenant", "another", "a third")),
        priority=st.sampled_from((0, 0, -1, 5)),
        program=st.sampled_from(("", "a loop", "a chat")),
        again=st.booleans(),
    )
    arrivals = st.lists(arrival, min_size=1, max_size=12).map(_in_order)
    return st.builds(
        Scenario,
        arrivals=arrivals,
        allocator=st.sampled_from(tuple(allocators)),
        depth=st.integers(1, 3),
        pages=st.integers(1, 16),
        page_size=st.integers(1, 4),
        host_pages=st.integers(0, 12),
        token_budget=st.integers(1, 16),
        running_limit=st.integers(1, 6),
        tick_ns=st.sampled_from((10 * NS_PER_MS, 10 * NS_PER_MS, 2 * NS_PER_S)),
        fails=st.one_of(st.just(()), st.tuples(st.integers(1, 30))),
        rebuilds=st.lists(st.integers(0, 60), max_size=4).map(tuple),
    )
