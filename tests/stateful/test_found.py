"""Faults that the machine, the walks and the conformance suite found, each told in as few events as it takes."""

from __future__ import annotations

from collections.abc import Callable

from stepwell.core import registry
from stepwell.core.events import Cancel, Timer
from stepwell.core.instructions import Finished
from stepwell.core.plan import Preemption, StepPlan
from stepwell.core.protocols import PolicyEvent, Promises, SchedulerView
from stepwell.core.testing_play import Arrival, Scenario
from stepwell.core.testing_policy import check_scenario
from stepwell.core.types import FOREVER
from stepwell.tests.stateful.world import Setup, World

DECODE = StepPlan()


class Scripted:
    """Plays its plans one by one; then asks for more time."""

    promises = Promises()

    def __init__(self, *plans: StepPlan) -> None:
        self.plans = list(plans)

    def observe(self, event: PolicyEvent) -> None: ...

    def plan(self, view: SchedulerView) -> StepPlan:
        return self.plans.pop(0) if self.plans else StepPlan(decode=False, wake_ns=view.now_ns + 1000)


def scripted(setup: Setup, *plans: StepPlan) -> World:
    world = World(setup)
    world.scheduler.state.policy = Scripted(*plans)
    return world


def ends(world: World) -> list[Finished]:
    """From here on collects how requests end."""
    found: list[Finished] = []
    follow: Callable[[Finished], None] = world.device.finished

    def finished(it: Finished) -> None:
        found.append(it)
        follow(it)

    world.device.finished = finished  # type: ignore[method-assign]
    return found


def test_a_token_in_flight_is_not_counted_for_who_left_the_group_and_came_back() -> None:
    world = scripted(
        Setup(depth=3),
        StepPlan(admit=[(1, 1)]),
        DECODE,
        StepPlan(hold=[1]),
        StepPlan(slices=[(1, 1)]),
        DECODE,
    )
    found = ends(world)
    world.send(world.submitted(1, 10))
    world.send(Timer())
    world.send(world.done())
    assert [flight.sampled for flight in world.device.flights] == [[1], [1], [1]]
    world.send(Cancel(1))
    assert found == [Finished(1, "cancelled", 1, 2)]


def test_a_token_in_flight_is_not_counted_for_who_is_rejected() -> None:
    world = scripted(
        Setup(depth=2, rejects=True),
        StepPlan(admit=[(1, 1)]),
        DECODE,
        StepPlan(preempt=[Preemption(1, "recompute", "test")]),
        StepPlan(reject=[(1, "test")]),
    )
    found = ends(world)
    world.send(world.submitted(1, 10))
    world.send(world.done())
    world.send(Timer())
    assert found == [Finished(1, "rejected", 1, 0, "test")]


def test_a_prefill_that_gives_way_is_not_continued_in_the_same_plan() -> None:
    world = World(Setup(policy="chat-batch", running_limit=1, token_budget=6))
    world.send(world.submitted(8, 2, "batch"))
    world.send(world.submitted(2, 2, "chat"))
    world.send(world.done())
    assert [row.id for row in world.device.live.values() if row.seated] == [2]
    world.drain()


def test_static_resumes_who_was_swapped_out_by_another_policy() -> None:
    world = scripted(
        Setup(), StepPlan(admit=[(1, 2)]), StepPlan(preempt=[Preemption(1, "swap", "test")]), StepPlan(wake_ns=1 << 40)
    )
    world.send(world.submitted(2, 4))
    world.send(world.done())
    world.send(world.done())
    world.send(world.use_policy("static"))
    world.drain()


def test_pages_that_come_back_end_a_repeat() -> None:
    """At depth 2 the plan was made while they were on their way; only planning anew takes in who waits for them."""
    scenario = Scenario(
        arrivals=(
            Arrival(tick=0, prompt=1, max_tokens=1, output=1),
            Arrival(tick=0, prompt=1, max_tokens=1, output=1),
            Arrival(tick=0, prompt=6, max_tokens=8, output=1),
            Arrival(tick=0, prompt=1, max_tokens=7, output=2),
            Arrival(tick=1, prompt=1, max_tokens=1, output=1),
        ),
        allocator="contiguous",
        depth=2,
        pages=9,
        page_size=3,
        token_budget=1,
        running_limit=2,
    )
    check_scenario(scenario, lambda: registry.make_policy("fcfs"))


def test_pages_that_victims_would_grow_by_are_not_needed_once_they_gave_way() -> None:
    """Otherwise the plan says that nobody can give way, repeats, and planning a step later somebody could."""
    scenario = Scenario(
        arrivals=(
            *(Arrival(tick=0, prompt=1, max_tokens=1, output=1) for _ in range(4)),
            Arrival(tick=7, prompt=2, max_tokens=3, output=3, klass="batch"),
            Arrival(tick=8, prompt=11, max_tokens=1, output=1),
        ),
        pages=7,
        host_pages=0,
        token_budget=1,
        running_limit=2,
    )
    check_scenario(scenario, lambda: registry.make_policy("chat-batch"))


def test_a_prefill_without_pages_lets_a_protected_one_go_on() -> None:
    """Another policy took request 1 in slice by slice, and request 2 may not be sent away again; pages are short.

    Nine pages of one token: request 2 has all it may need, 6, and request 1 has 1 and wants 7 more, the whole step.
    """
    world = scripted(
        Setup(pages=9, page_size=1, max_preemptions=1, token_budget=7),
        StepPlan(admit=[(2, 1)]),
        StepPlan(preempt=[Preemption(2, "recompute", "test")], admit=[(1, 1)], reserve="slice"),
        StepPlan(admit=[(2, 1)]),
    )
    world.send(world.submitted(8, 1), world.submitted(1, 6))
    world.send(world.done())
    world.send(world.done())
    world.send(world.done(), world.use_policy("fcfs"))
    assert [(row.id, row.stored) for row in world.device.live.values()] == [(1, 3), (2, 2)]
    world.drain()


def test_a_run_ends_at_a_deadline_although_its_request_has_begun() -> None:
    """There the policy is asked again if steps are done one by one, and so it must be if they are taken in one go."""
    for jumps in (True, False):
        world = scripted(Setup(pages=30, token_budget=4), StepPlan(admit=[(1, 1)]), StepPlan(repeat=FOREVER), DECODE)
        policy = world.scheduler.state.policy
        assert isinstance(policy, Scripted)
        world.send(world.submitted(1, 40, expires_in_ns=4))
        world.send(world.done(), after_ns=1)
        if jumps:
            world.run(10)
        assert world.now_ns < 4
        while world.now_ns < 3:
            world.send(world.done(), after_ns=1)
        assert len(policy.plans) == 1
        world.send(world.done(), after_ns=1)
        assert not policy.plans
