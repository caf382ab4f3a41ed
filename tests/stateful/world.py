"""A scheduler and a suspicious device (``Executor``) on one clock: whoever drives only says what happens next."""

from __future__ import annotations

from dataclasses import dataclass, field

from stepwell.core import registry
from stepwell.core.applying import new_table
from stepwell.core.config import MemoryConfig
from stepwell.core.engine import Observer
from stepwell.core.events import (
    Cancel,
    Event,
    Pause,
    Pin,
    ResetCache,
    RunDone,
    StepDone,
    StepFailed,
    Stop,
    Submitted,
    Timer,
    UsePolicy,
    in_order,
)
from stepwell.core.instructions import CacheReset, Instruction
from stepwell.core.invariants import check_state
from stepwell.core.limits import SchedulerLimits
from stepwell.core.protocols import KVAllocator, Reservation, SchedulerPolicy
from stepwell.core.request import Request
from stepwell.core.scheduler import Scheduler
from stepwell.tests.helpers.prompts import alike
from stepwell.tests.stateful.chaos import Chaos
from stepwell.tests.stateful.executor import Executor
from stepwell.tests.stateful.kv_memory import Memory
from stepwell.tests.stateful.rows import Row, must

POLICIES = ("fcfs", "swap", "chat-batch", "static", "chaos")
ALLOCATORS = ("paged", "contiguous", "prefix", "radix")
OPTIONS: dict[str, dict[str, object]] = {"chat-batch": {"aging_s": 2e-6}, "static": {"batch_size": 3}}
ALLOCATOR_OPTIONS: dict[str, dict[str, object]] = {"radix": {"key_tokens": 1}}


@dataclass(frozen=True)
class Setup:
    """The size of a world; all of it small, so that everything runs short of everything."""

    policy: str = "fcfs"
    allocator: str = "paged"
    depth: int = 1
    pages: int = 6
    page_size: int = 2
    host_pages: int = 4
    token_budget: int = 8
    running_limit: int = 4
    max_preemptions: int = 2
    max_failures: int = 2
    max_waiting: int = 12
    rejects: bool = False
    honour_repeats: bool = True
    forks: float = 0.0
    """How often a random walk asks for another choice of a prompt."""
    seed: int = 0


@dataclass
class World:
    """``send`` is the only way in.  Every law is checked after each batch of events."""

    setup: Setup
    now_ns: int = 0
    last_id: int = 0
    events: list[Event] = field(default_factory=list)
    told: list[Instruction] = field(default_factory=list)
    """The answer to the last batch of events."""
    watching: list[Observer] = field(default_factory=list)
    choices: dict[int, int] = field(default_factory=dict)
    """The parents of those who have one."""

    def __post_init__(self) -> None:
        it = self.setup
        limits = SchedulerLimits(
            token_budget=max(it.token_budget, it.running_limit),
            running_limit=it.running_limit,
            depth=it.depth,
            max_preemptions=it.max_preemptions,
            max_failures=it.max_failures,
            max_waiting=it.max_waiting,
            seed=it.seed,
        )
        self.scheduler = Scheduler(
            limits,
            self.allocator(),
            self.make_policy,
            it.policy,
            OPTIONS.get(it.policy),
            honour_repeats=it.honour_repeats,
        )
        self.key_tokens = self.scheduler.state.allocator.key_tokens
        memory = Memory(it.pages, it.page_size, it.host_pages, self.key_tokens)
        self.device = Executor(limits, memory, it.pages * it.page_size, self.answer_keys)
        self.device.rejects = it.rejects

    def allocator(self) -> KVAllocator:
        it = self.setup
        return registry.make_allocator(
            MemoryConfig(
                allocator=it.allocator,
                pages=it.pages,
                page_size=it.page_size,
                host_pages=it.host_pages,
                options=ALLOCATOR_OPTIONS.get(it.allocator, {}),
            )
        )

    def make_policy(self, name: str, options: dict[str, object]) -> SchedulerPolicy:
        if name == "chaos":
            return Chaos(self.setup.seed, rejects=self.setup.rejects)
        return registry.make_policy(name, options)

    # ------------------------------------------------------------------------------------------ what happens

    def send(self, *events: Event, after_ns: int = 0) -> None:
        self.now_ns += after_ns
        batch = in_order(events)
        self.device.before(self.now_ns, batch)
        paused, last = self.scheduler.paused, self.device.last_step
        self.told = self.scheduler.handle(self.now_ns, batch)
        self.device.follow(self.told)
        for watch in self.watching:
            watch(self.now_ns, batch, self.told)
        if paused and self.scheduler.paused:
            must(self.device.last_step == last, "a step was launched during a pause")
        self.check()

    def submitted(self, prompt: int, max_tokens: int, klass: str = "chat", expires_in_ns: int = 0) -> Submitted:
        self.last_id += 1
        expires_ns = self.now_ns + expires_in_ns if expires_in_ns else 0
        return Submitted(self.last_id, prompt, max_tokens, klass, "t", expires_ns, self.keys(self.last_id, prompt))

    def forked(self, pick: int, max_tokens: int, klass: str = "chat", expires_in_ns: int = 0) -> Submitted:
        """Another choice of the prompt of a request, one time in four perhaps an ended one; a first one if none is.

        Neither says anything that has a key: what a page of prompt and answer holds would depend on both.
        """
        rows = [row for row in self.device.live.values() if self.may_fork(row)] if pick % 4 else []
        rows = rows or [row for row in self.device.rows.values() if self.may_fork(row)]
        if not rows:
            return self.submitted(1, max_tokens, klass, expires_in_ns)
        row = rows[-1 - pick // 4 % min(len(rows), 8)]
        event = self.submitted(row.prompt, max_tokens, klass, expires_in_ns)
        event.keys, event.parent = list(row.keys), row.id
        self.choices[event.request] = row.id
        return event

    def may_fork(self, row: Row) -> bool:
        return row.prompt < self.device.cap and not self.answer_keys(row.id, row.prompt)

    def keys(self, id: int, tokens: int) -> list[int]:
        if not self.scheduler.state.allocator.reuses_prefixes:
            return []
        return alike(tokens // self.key_tokens, id % 3 + 1, id % 4)

    def answer_keys(self, id: int, prompt: int) -> list[int]:
        """Of what comes after its prompt: every other request says what a longer prompt like its own goes on with."""
        keys = self.keys(id, self.device.cap + self.key_tokens) if id % 2 and id not in self.choices else []
        return keys[prompt // self.key_tokens :]

    def ends(self, id: int) -> list[int]:
        """The keys that come with its end; more than are computed."""
        row = self.device.live.get(id)
        return self.answer_keys(id, row.prompt) if row is not None else []

    def done(self, picks: int = 0) -> StepDone:
        """The oldest step is done; bit ``k`` of ``picks``: its ``k``-th sampling request produced an end token."""
        flight = self.device.flights[0]
        ended = [id for k, id in enumerate(flight.sampled) if picks >> k & 1]
        keys = [(id, keys) for id in flight.sampled if (keys := self.ends(id)) and (id in ended or picks % 3 == 0)]
        return StepDone(flight.step, ended, 1, keys=keys)

    def failed(self, blame: int = -1, *, device_lost: bool = False) -> StepFailed:
        """The oldest step failed; one live request may be to blame."""
        live = list(self.device.live)
        blamed = [live[blame % len(live)]] if live and blame >= 0 else []
        return StepFailed(self.device.flights[0].step, blamed, "test", device_lost)

    def cancel(self, pick: int) -> Cancel:
        """Of a live, an ended, or an unknown request."""
        id = pick % (self.last_id + 2)
        return Cancel(id, self.ends(id))

    def pin(self, pick: int, pages: int) -> Pin:
        """What requests of one kind begin with; every other time no longer."""
        keys = self.keys(pick, pages * self.key_tokens)
        return Pin(keys, pick % 2 == 0)

    def pause(self, on: bool) -> None:
        """By an operator.  While it lasts no step is launched, and who waits too long ends all the same."""
        before = self.device.last_step
        self.send(Pause(on, "test"))
        must(not on or self.device.last_step == before, "a step was launched by a pause")

    def reset_cache(self) -> None:
        """By an operator: nothing is found afterwards, and not one page is lost or won."""
        state = self.scheduler.state
        free, live = state.allocator.usage().used, list(state.requests.values())
        self.send(ResetCache("test"))
        must(all(not state.allocator.cached_tokens(each.keys) for each in live), "something is found after a reset")
        told = [each.pages for each in self.told if isinstance(each, CacheReset)]
        must(len(told) == 1 and 0 <= told[0] <= self.setup.pages - free, f"a reset of {told} pages")

    def stop(self, pick: int, keep: int) -> Stop | None:
        """A stop string in what one live request has produced."""
        rows = [row for row in self.device.live.values() if row.made]
        if not rows:
            return None
        row = rows[pick % len(rows)]
        return Stop(row.id, keep % (row.made + 1), self.ends(row.id))

    def run(self, most: int) -> bool:
        """Let the plan's repeats be done in one go, if there are any."""
        further, until_ns = self.scheduler.repeats.repeatable(most)
        further = min(further, until_ns - self.now_ns - 1)
        if further <= 0:
            return False
        step = self.device.flights[0].step
        times = [self.now_ns + k for k in range(1, further + 1)]
        self.now_ns = times[-1]
        self.send(RunDone(step, times))
        return True

    def use_policy(self, name: str) -> UsePolicy:
        return UsePolicy(name, OPTIONS.get(name, {}), "test")

    # ---------------------------------------------------------------------------------------------- the laws

    def check(self) -> None:
        state, device = self.scheduler.state, self.device
        check_state(state)
        must(list(state.requests) == list(device.live), "scheduler and device disagree on who is live")
        for id, row in device.live.items():
            self.compare(id, row)
        for request in state.waiting.values():
            if request.parent:
                self.foresee(request)
        if self.scheduler.paused:
            dates = [row.expires_ns for row in device.live.values() if row.expires_ns and not row.begun]
            must(not dates or self.now_ns < device.wake_ns <= min(dates), f"paused, and nobody wakes for {dates}")
            return
        must(
            not device.live or bool(device.flights) or device.wake_ns > self.now_ns,
            f"requests {list(device.live)} wait, but no step is in flight and no time is named",
        )

    def compare(self, id: int, row: Row) -> None:
        request = self.scheduler.state.requests[id]
        numbers = (request.computed, request.generated, list(self.scheduler.state.allocator.table(id)))
        must(numbers == (row.stored, row.sampled, row.table), f"request {id}: {numbers} for the scheduler, {row}")

    def foresee(self, request: Request) -> None:
        """What a policy is told of a choice in line is what its admission would do now."""
        state = self.scheduler.state
        missing, needed = state.view.pages_missing(request), state.view.pages_needed(request)
        cached, free = state.view.cached_tokens(request), state.allocator.free_pages
        twin = self.allocator()
        twin.load(state.allocator.dump())
        own, state.allocator = state.allocator, twin
        table = new_table(state, request)
        state.allocator = own
        must((missing == 0) == isinstance(table, Reservation), f"request {request.id}: {missing} missing, but {table}")
        if isinstance(table, Reservation):
            took = free - twin.free_pages
            must((cached, needed) == (table.cached, took), f"request {request.id}: {cached} cached, {needed}; {table}")

    def drain(self) -> None:
        """Nothing new arrives: everybody ends within a bound that follows from the work left."""
        if self.scheduler.paused:
            self.pause(False)
        work = sum(row.prompt + row.max_tokens for row in self.device.live.values())
        turns = 50 + work * (self.setup.max_preemptions + 2) * 4
        while self.device.live:
            turns -= 1
            must(turns > 0, f"requests {list(self.device.live)} do not come to an end")
            if self.device.flights:
                self.send(self.done(), after_ns=10)
            else:
                self.timer()
        while self.device.flights:
            self.send(self.done(), after_ns=1)
        usage = self.scheduler.state.allocator.usage()
        must((usage.free, usage.host_free) == (usage.total, usage.host_total), f"everybody ended, but {usage}")

    def timer(self) -> None:
        wait_ns = max(0, self.device.wake_ns - self.now_ns)
        self.send(Timer(), after_ns=wait_ns)
