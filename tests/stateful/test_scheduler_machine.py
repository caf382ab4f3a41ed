"""Whatever comes, in whatever order, at depth 1 to 3: the scheduler keeps every law (``World`` and ``Executor``)."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from stepwell.core.events import Event, StepFailed, Timer
from stepwell.tests.stateful.world import ALLOCATORS, POLICIES, Setup, World

PICKS = st.integers(0, 1 << 16)
SOON = st.sampled_from((0, 1, 10, 300, 3000))
SETUPS = st.builds(
    Setup,
    policy=st.sampled_from(POLICIES),
    allocator=st.sampled_from(ALLOCATORS),
    depth=st.integers(1, 3),
    pages=st.integers(1, 10),
    page_size=st.integers(1, 4),
    host_pages=st.integers(0, 8),
    token_budget=st.integers(1, 12),
    running_limit=st.integers(1, 5),
    max_preemptions=st.integers(1, 3),
    max_failures=st.integers(0, 2),
    max_waiting=st.sampled_from((0, 3, 20)),
    rejects=st.booleans(),
    honour_repeats=st.booleans(),
    seed=PICKS,
)


class SchedulerMachine(RuleBasedStateMachine):
    """Rules are what can happen to a scheduler.  At the end nothing new arrives, and everybody must end."""

    world: World

    @initialize(setup=SETUPS)
    def begin(self, setup: Setup) -> None:
        self.world = World(setup)

    def in_flight(self) -> bool:
        return bool(self.world.device.flights)

    @rule(
        prompt=st.integers(1, 24),
        max_tokens=st.integers(1, 30),
        klass=st.sampled_from(("chat", "batch", "batch", "nobody")),
        expires_in_ns=st.sampled_from((0, 0, 1, 200)),
        after_ns=SOON,
    )
    def submit(self, prompt: int, max_tokens: int, klass: str, expires_in_ns: int, after_ns: int) -> None:
        self.world.send(self.world.submitted(prompt, max_tokens, klass, expires_in_ns), after_ns=after_ns)

    @rule(
        pick=PICKS,
        max_tokens=st.lists(st.integers(1, 12), min_size=1, max_size=4),
        klass=st.sampled_from(("chat", "batch")),
        expires_in_ns=st.sampled_from((0, 0, 1, 200)),
        after_ns=SOON,
    )
    def choices(self, pick: int, max_tokens: list[int], klass: str, expires_in_ns: int, after_ns: int) -> None:
        """Of the prompt of an earlier request."""
        events = [self.world.forked(pick, each, klass, expires_in_ns) for each in max_tokens]
        self.world.send(*events, after_ns=after_ns)

    @precondition(in_flight)
    @rule(after_ns=SOON)
    def step_done(self, after_ns: int) -> None:
        self.world.send(self.world.done(), after_ns=after_ns)

    @precondition(in_flight)
    @rule(picks=PICKS, after_ns=SOON)
    def step_done_with_ends(self, picks: int, after_ns: int) -> None:
        self.world.send(self.world.done(picks), after_ns=after_ns)

    @precondition(in_flight)
    @rule(count=st.integers(1, 12))
    def steps_done(self, count: int) -> None:
        for _ in range(count):
            if self.in_flight():
                self.world.send(self.world.done(), after_ns=10)

    @precondition(in_flight)
    @rule(most=st.integers(1, 30))
    def run_done(self, most: int) -> None:
        self.world.run(most)

    @precondition(in_flight)
    @rule(blame=st.integers(-2, 20), device_lost=st.booleans(), after_ns=SOON)
    def step_failed(self, blame: int, device_lost: bool, after_ns: int) -> None:
        self.world.send(self.world.failed(blame, device_lost=device_lost), after_ns=after_ns)

    @precondition(lambda self: not self.world.device.flights)
    @rule(after_ns=SOON)
    def lost_between_steps(self, after_ns: int) -> None:
        self.world.send(StepFailed(0, [], "test", True), after_ns=after_ns)

    @rule(pick=PICKS, twice=st.booleans())
    def cancel(self, pick: int, twice: bool) -> None:
        event = self.world.cancel(pick)
        self.world.send(*([event, event] if twice else [event]))

    @rule(pick=PICKS, keep=PICKS)
    def stop(self, pick: int, keep: int) -> None:
        event = self.world.stop(pick, keep)
        if event is not None:
            self.world.send(event)

    @rule(after_ns=SOON)
    def timer(self, after_ns: int) -> None:
        self.world.send(Timer(), after_ns=after_ns)

    @rule(name=st.sampled_from(POLICIES))
    def use_policy(self, name: str) -> None:
        self.world.send(self.world.use_policy(name))

    @rule(on=st.booleans())
    def pause(self, on: bool) -> None:
        self.world.pause(on)

    @rule()
    def reset_cache(self) -> None:
        self.world.reset_cache()

    @rule(picks=PICKS, pick=PICKS, prompts=st.lists(st.integers(1, 12), max_size=4), after_ns=SOON)
    def together(self, picks: int, pick: int, prompts: list[int], after_ns: int) -> None:
        """A step's end, a cancel and arrivals, all at one time."""
        events: list[Event] = [self.world.submitted(prompt, 5, "batch") for prompt in prompts]
        events.append(self.world.cancel(pick))
        if self.in_flight():
            events.append(self.world.done(picks))
        self.world.send(*events, after_ns=after_ns)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.drain()


def test_the_scheduler_keeps_every_law() -> None:
    modest = settings(max_examples=120, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(SchedulerMachine, settings=modest)
