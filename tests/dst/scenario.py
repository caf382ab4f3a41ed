"""What happens in one simulated life of the engine, as data: it can be written down, repeated, and made smaller.

Times are nanoseconds of the event loop, from its start.  Faults of the device come by step: each strikes the first step
of that id or a later one, once.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from stepwell.core.build import limits_of
from stepwell.core.config import Config, CostConfig, MemoryConfig, SchedulerConfig, validate
from stepwell.core.limits import SchedulerLimits
from stepwell.core.registry import complete
from stepwell.sim.cost.linear import Linear
from stepwell.tests.dst.dice import DICE

MS = 1_000_000
STEP = Linear.Options(
    base_ns=7_000_003,
    prefill_token_ns=100_003,
    prefill_request_ns=10_007,
    decode_request_ns=50_021,
    kv_token_ps=1_333,
    swap_page_ns=200_017,
)
"""Steps of some milliseconds, of odd numbers: so that everything meets everything in time."""

Table = dict[str, object]


class House(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's setting; all of it small, so that everything runs short of everything."""

    policy: str = "fcfs"
    options: Table = {}
    shadow: str = ""
    allocator: str = "paged"
    memory_options: Table = {}
    pages: int = 12
    page_size: int = 4
    host_pages: int = 8
    token_budget: int = 16
    running_limit: int = 4
    depth: int = 1
    max_waiting: int = 100
    max_preemptions: int = 3
    max_failures: int = 3
    process: bool = False
    """Steps are executed by a worker that may die (``placement_process``), not on the loop."""
    instant: bool = False
    """Steps take no time, so that the engine hears of several at once."""
    segment_turns: int = 0
    """The journal begins a new segment after so many turns; 0: it has one."""

    def config(self) -> Config:
        scheduler = SchedulerConfig(
            policy=self.policy,
            options=self.options,
            shadow=self.shadow,
            token_budget=self.token_budget,
            running_limit=self.running_limit,
            depth=self.depth,
            max_waiting=self.max_waiting,
            max_preemptions=self.max_preemptions,
            max_failures=self.max_failures,
        )
        memory = MemoryConfig(
            allocator=self.allocator,
            options=self.memory_options,
            pages=self.pages,
            page_size=self.page_size,
            host_pages=self.host_pages,
        )
        cost = CostConfig(options=msgspec.to_builtins(STEP))
        return complete(validate(Config(scheduler=scheduler, memory=memory, cost=cost)))

    def limits(self) -> SchedulerLimits:
        return limits_of(self.config())

    @property
    def cap(self) -> int:
        """Tokens that one request may have."""
        return self.pages * self.page_size

    @property
    def rejects(self) -> bool:
        """Whether the policy may reject requests of its own accord."""
        return self.policy == DICE and bool(self.options.get("rejects"))


class Visit(msgspec.Struct, frozen=True, kw_only=True):
    """A client with one request: its prompt said again and again, ``length`` tokens of it, is the answer."""

    key: int
    at_ns: int
    prompt: list[int]
    length: int
    max_tokens: int
    endless: bool = False
    """End tokens do not end it."""
    klass: str = "chat"
    tenant: str = "default"
    priority: int = 0
    program: str = ""
    expires_ns: int = 0
    """After its arrival; 0: never."""
    parent: int = 0
    """The key of an earlier visit with the same prompt."""
    listens: bool = False
    """It is called by the engine, instead of iterating."""
    lag_ns: int = 0
    """Time that it takes for each piece: of the loop's if it listens, else of its own."""
    leaves_after: int = 0
    """Cancels once it has so many tokens; 0: never."""
    leaves_ns: int = 0
    """Cancels so long after its arrival; 0: never."""
    cancels: int = 1
    """How often it does."""
    raises_after: int = 0
    """Its listener breaks with so many tokens; 0: never."""
    stops_after: int = 0
    """Finds a stop string with so many tokens (it listens); 0: never."""
    keeps: int = 0
    """Tokens before the stop string."""

    @property
    def faithful(self) -> bool:
        """Stays to the end, whatever that is."""
        return not (self.leaves_after or self.leaves_ns or self.raises_after or self.stops_after or self.expires_ns)

    def answer(self, tokens: int) -> list[int]:
        """The first so many of its answer."""
        return [self.prompt[place % len(self.prompt)] for place in range(tokens)]


class Slow(msgspec.Struct, frozen=True, tag="slow"):
    """A step that takes ``by_ns`` longer."""

    step: int
    by_ns: int


class OutOfMemory(msgspec.Struct, frozen=True, tag="oom"):
    """A step that fails; the ``blamed``-th request in it is at fault, or nobody (-1)."""

    step: int
    blamed: int = -1


class Lost(msgspec.Struct, frozen=True, tag="lost"):
    """The device is lost: before it executes a step, while it does, or just after it answered.

    Its successor comes up at the attempt after ``stillborn`` others (of a worker; on the loop there is no such thing).
    """

    step: int
    when: Literal["before", "during", "after"] = "during"
    stillborn: int = 0


class Raises(msgspec.Struct, frozen=True, tag="raises"):
    """The backend raises, so nobody knows what is on the device: the engine must stop, and tell everybody."""

    step: int


class Jump(msgspec.Struct, frozen=True, tag="jump"):
    """The engine's clock leaps ahead at ``at_ns``, or falls back (a negative ``by_ns``): then the engine must stop."""

    at_ns: int
    by_ns: int


class Stall(msgspec.Struct, frozen=True, tag="stall"):
    """The engine's clock stands still for ``for_ns`` from ``at_ns`` on."""

    at_ns: int
    for_ns: int


class UsePolicy(msgspec.Struct, frozen=True, tag="policy"):
    """An operator changes the policy."""

    at_ns: int
    name: str
    options: Table = {}


class Pin(msgspec.Struct, frozen=True, tag="pin"):
    """An operator pins how a visit's prompt begins; or no longer."""

    at_ns: int
    key: int
    on: bool = True


class Hold(msgspec.Struct, frozen=True, tag="hold"):
    """An operator pauses the engine, and lets it go on ``for_ns`` later."""

    at_ns: int
    for_ns: int


class Reset(msgspec.Struct, frozen=True, tag="reset"):
    """An operator gives up what is kept of earlier prompts."""

    at_ns: int


class Close(msgspec.Struct, frozen=True, tag="close"):
    """The engine drains; ``kill``: it is cancelled from outside."""

    at_ns: int
    kill: bool = False


Fault = Slow | OutOfMemory | Lost | Raises
Twist = Jump | Stall
Act = UsePolicy | Pin | Hold | Reset | Close


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """One life."""

    seed: int
    house: House
    visits: list[Visit]
    faults: list[Fault] = []
    """Of the device."""
    twists: list[Twist] = []
    """Of the engine's clock."""
    acts: list[Act] = []
    """Of the operator."""

    def fails(self, kind: type[Fault]) -> bool:
        """Whether such a fault is to strike."""
        return any(isinstance(each, kind) for each in self.faults)

    @property
    def closes(self) -> bool:
        return any(isinstance(each, Close) for each in self.acts)


def encode(scenario: Scenario) -> bytes:
    return msgspec.json.format(msgspec.json.encode(scenario), indent=1)


def decode(data: bytes) -> Scenario:
    return msgspec.json.decode(data, type=Scenario)
