"""The shadow: the journal is the same with it and without, whatever it does; and what it says of the other is so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.core.build import make_shadow
from stepwell.core.clock import VirtualClock
from stepwell.core.engine import Engine
from stepwell.core.errors import UserError
from stepwell.core.events import Event, StepDone, Submitted
from stepwell.core.limits import SchedulerLimits
from stepwell.core.plan import StepPlan
from stepwell.core.protocols import PolicyEvent, Promises, SchedulerPolicy, SchedulerView
from stepwell.core.registry import make_policy, names
from stepwell.core.scheduler import Scheduler
from stepwell.core.shadow import BURST_NS, DEBT_NS, Beside, Shadow, ShadowReport, shadow_of
from stepwell.core.types import NS_PER_MS
from stepwell.memory.paged import Paged
from stepwell.policies.toolkit import OrderedLine, by_arrival, pack
from stepwell.tests.core.shells import OPTIONS, Case, fixed_case, live, simulated
from stepwell.tests.core.test_two_shells import ALLOCATORS, FAULTS, POLICIES, QUICK, broken, cases

BAD = "stepwell.tests.core.bad_policies:Breaks"


def beside(case: Case, shadow: str, options: dict[str, object] | None = None) -> Case:
    """The same house with a shadow in it."""
    chosen = OPTIONS.get(shadow, {}) if options is None else options
    return replace(case, scheduler={**case.scheduler, "shadow": shadow, "shadow_options": chosen})


def decisions(journal: bytes) -> bytes:
    """Without the first line, which has the configuration."""
    return journal.split(b"\n", 1)[1]


# ------------------------------------------------------------------------------------------------ it changes nothing


@pytest.mark.parametrize("policy", POLICIES)
def test_the_journal_is_the_same_with_any_shadow(policy: str) -> None:
    for seed, allocator in ((0, "paged"), (1, "prefix"), (3, "paged")):
        case = fixed_case(seed, policy, allocator)
        alone = decisions(simulated(case).journal)
        for shadow in POLICIES:
            assert decisions(simulated(beside(case, shadow)).journal) == alone, shadow


@pytest.mark.parametrize("policy", POLICIES)
def test_the_journal_is_the_same_in_any_house(policy: str) -> None:
    def test(data: st.DataObject, allocator: str, shadow: str) -> None:
        case = data.draw(cases(policy, allocator))
        assert decisions(simulated(beside(case, shadow)).journal) == decisions(simulated(case).journal)

    drawn: Any = given(st.data(), st.sampled_from(ALLOCATORS), st.sampled_from(POLICIES))(test)
    QUICK(drawn)()


async def swap_about(engine: Engine, clock: VirtualClock) -> None:
    for at_ns, name in ((90, "mlfq"), (300, "chat-batch"), (310, "fcfs"), (700, "vtc")):
        await clock.sleep_until(at_ns)
        engine.use_policy(name, {}, "the test says so")


@pytest.mark.parametrize("shadow", POLICIES)
def test_it_stays_while_the_live_policy_is_changed(shadow: str) -> None:
    case = replace(fixed_case(1, "swap", "paged"), max_tokens=40)
    found: list[Shadow | None] = []

    async def look(engine: Engine, clock: VirtualClock) -> None:
        found.append(shadow_of(engine.scheduler))
        await swap_about(engine, clock)
        found.append(shadow_of(engine.scheduler))

    run = live(beside(case, shadow), beside=look)
    assert decisions(run.journal) == decisions(live(case, beside=swap_about).journal)
    assert run.journal.count(b'["policy","') == 4
    first, last = found
    assert first is last is not None
    assert (last.off, last.skipped) == ("", 0)
    assert last.tally.compared > 20


class Notes:
    """First come, first served, and a note of everything observed."""

    promises = Promises()

    def __init__(self) -> None:
        self.line = OrderedLine(by_arrival)
        self.seen: list[tuple[str, int]] = []

    def observe(self, event: PolicyEvent) -> None:
        self.seen.append((event.kind, event.request.id))
        self.line.observe(event)

    def plan(self, view: SchedulerView) -> StepPlan:
        return pack(view, self.line)


def test_introductions_to_a_new_live_policy_are_not_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It observes exactly what it would have observed as the only policy that there ever was."""
    seen: list[list[tuple[str, int]]] = []
    for swaps in (False, True):
        policy = Notes()
        monkeypatch.setattr(
            "stepwell.tests.core.shells.make_shadow", lambda config, policy=policy: Shadow(policy, "notes", {})
        )

        async def change(engine: Engine, clock: VirtualClock, swaps: bool = swaps) -> None:
            for at_ns in (50, 90, 300, 310, 700) if swaps else ():
                await clock.sleep_until(at_ns)
                engine.use_policy("swap", {})

        live(fixed_case(1, "swap", "paged"), beside=change)
        seen.append(policy.seen)
    assert seen[0] == seen[1]
    assert {"swapped", "resumed", "admitted", "finished"} <= {kind for kind, _ in seen[0]}


# ------------------------------------------------------------------------------------------------ what fails


@pytest.mark.parametrize("how", sorted(FAULTS))
def test_one_that_fails_is_switched_off_and_said(how: str) -> None:
    case = fixed_case(1, "swap", "paged")
    case = replace(case, scheduler={**case.scheduler, "depth": 1})
    shadowed = beside(case, BAD, {"how": how, "at": 7})
    found: list[Shadow | None] = []

    async def look(engine: Engine, clock: VirtualClock) -> None:
        found.append(shadow_of(engine.scheduler))

    run = live(shadowed, beside=look)
    assert decisions(run.journal) == decisions(live(case).journal)
    assert found[0] is not None
    report = found[0].report()
    assert FAULTS[how] in report.off
    assert 0 < report.compared <= 7


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("how", sorted(FAULTS))
def test_a_live_policy_that_fails_does_so_as_if_alone(how: str, depth: int) -> None:
    case = broken(how, depth)
    assert decisions(live(beside(case, "chat-batch")).journal) == decisions(live(case).journal)


def test_one_that_is_not_there_is_told_under_its_own_name() -> None:
    case = fixed_case(1, "fcfs", "paged")
    wrong: list[tuple[str, dict[str, object], str]] = [
        ("fcsf", {}, "scheduler.shadow"),
        ("srpt", {"predictor": "oracel"}, "scheduler.shadow_options.predictor"),
        ("chat-batch", {"aging": 1}, "scheduler.shadow_options.aging"),
    ]
    for shadow, options, field in wrong:
        with pytest.raises(UserError) as refused:
            make_shadow(beside(case, shadow, options).config())
        assert refused.value.field == field
    oracle = beside(case, "srpt", {"predictor": "oracle"}).config()
    with pytest.raises(UserError, match=r"scheduler.shadow_options.predictor: .*simulations only"):
        make_shadow(oracle, clock=lambda: 0)
    assert make_shadow(oracle) is not None


# ------------------------------------------------------------------------------------------------ what it says


@pytest.mark.parametrize("policy", POLICIES)
def test_beside_itself_nothing_differs(policy: str) -> None:
    for seed in range(5):
        case = fixed_case(seed, policy, ALLOCATORS[seed % len(ALLOCATORS)])
        found: list[Scheduler] = []

        async def look(engine: Engine, clock: VirtualClock, found: list[Scheduler] = found) -> None:
            found.append(engine.scheduler)

        live(beside(case, policy), beside=look)
        report = report_of(found[0])
        assert (report.off, report.differed, report.differences) == ("", 0, ())
        assert report.compared > 5
        assert report.live_tokens == report.shadow_tokens


def report_of(scheduler: Scheduler) -> ShadowReport:
    shadow = shadow_of(scheduler)
    assert shadow is not None
    return shadow.report()


class House:
    """A scheduler with a shadow in it, driven by hand; steps of 10 ms."""

    def __init__(self, live: SchedulerPolicy, shadow: Shadow, *, running_limit: int) -> None:
        limits = SchedulerLimits(running_limit=running_limit, token_budget=8)
        allocator = Paged(Paged.Options(), pages=64, page_size=4, host_pages=64)
        self.scheduler = Scheduler(limits, allocator, lambda name, options: Beside(live, shadow), "tested")
        shadow.state = self.scheduler.state
        self.now_ns = 0
        self.step = 0

    def handle(self, *events: Event) -> None:
        self.scheduler.handle(self.now_ns, events)

    def done(self, ended: Sequence[int] = ()) -> None:
        self.now_ns += 10 * NS_PER_MS
        self.step += 1
        self.handle(StepDone(self.step, list(ended)))


def test_by_hand_who_would_have_been_taken_in_and_who_sent_away() -> None:
    """One seat.  A batch request runs when a chat request comes: ``fcfs`` lets it wait, ``chat-batch`` would not."""
    shadow = Shadow(make_policy("chat-batch"), "chat-batch", {})
    house = House(make_policy("fcfs"), shadow, running_limit=1)
    house.handle(Submitted(1, 12, 100, "batch"))
    house.done()
    house.handle(Submitted(2, 6, 100, "chat"))
    assert shadow.report().differed == 0
    house.done()  # the prompt is computed: the next plan is about who decodes
    for _ in range(3):
        house.done()
    report = shadow.report()
    rows = [(each.live, each.shadow, each.steps, each.requests) for each in report.differences]
    assert rows == [("run", "swap", report.differed, 1), ("wait", "admit", report.differed, 1)]
    assert [(each.request, each.klass, each.live, each.shadow) for each in report.examples] == [
        (2, "chat", "wait", "admit"),
        (1, "batch", "run", "swap"),
    ]
    assert (report.chunk_tokens, report.live_tokens, report.shadow_tokens) == (0, 12, 12 + 6 * report.differed)
    assert (report.compared, report.differed, report.repeated) == (3, 1, 3), "the plan of the third step repeats"
    house.done([1])
    house.done([2])
    assert not shadow.tally._seen, "nothing is kept of requests that have ended"


def test_by_hand_chunks() -> None:
    """``sarathi`` with a step time that holds 3 prompt tokens, beside ``fcfs``, which fills the budget of 8."""
    options: dict[str, object] = {"step_ms": 0.001, "least": 3}
    shadow = Shadow(make_policy("sarathi", options), "sarathi", options)
    house = House(make_policy("fcfs"), shadow, running_limit=4)
    house.handle(Submitted(1, 1, 100))
    house.done()
    house.handle(Submitted(2, 20, 100))
    for _ in range(4):
        house.done()
    report = shadow.report()
    assert [(each.live, each.shadow) for each in report.differences] == []
    assert report.differed == 3
    assert (report.live_tokens, report.shadow_tokens) == (21, 10)
    assert report.chunk_tokens == (7 - 3) + (7 - 3) + (6 - 3)


# ------------------------------------------------------------------------------------------------ what it takes


class Slow:
    """First come, first served, taking its time: the clock is moved on by hand."""

    promises = Promises()

    def __init__(self, plan_ns: int, observe_ns: int) -> None:
        self.plan_ns, self.observe_ns = plan_ns, observe_ns
        self.line = OrderedLine(by_arrival)
        self.now_ns = 0

    def observe(self, event: PolicyEvent) -> None:
        self.now_ns += self.observe_ns
        self.line.observe(event)

    def plan(self, view: SchedulerView) -> StepPlan:
        self.now_ns += self.plan_ns
        return pack(view, self.line)


def drive(slow: Slow, share: float, turns: int) -> tuple[Shadow, int]:
    """Arrivals and ends, a step of 10 ms each; the shadow, and how long all of it took."""
    shadow = Shadow(slow, "slow", {}, share=share, clock=lambda: slow.now_ns)
    house = House(make_policy("fcfs"), shadow, running_limit=1)
    for turn in range(turns):
        slow.now_ns += 10 * NS_PER_MS
        house.handle(Submitted(turn + 1, 2, 100))
        if turn:
            house.done([turn])
    return shadow, slow.now_ns


@pytest.mark.parametrize("plan_ms", [1, 7, 300])
def test_its_time_is_bounded_and_measured(plan_ms: int) -> None:
    shadow, whole_ns = drive(Slow(plan_ms * NS_PER_MS, 1000), 0.05, 2000)
    report = shadow.report()
    spent_ns = report.observing_ns + report.planning_ns
    assert report.off == ""
    assert report.longest_plan_ns == plan_ms * NS_PER_MS
    assert report.planning_ns == report.compared * plan_ms * NS_PER_MS
    assert report.skipped > 0
    assert report.compared + report.skipped == 2000
    assert spent_ns <= 0.05 * whole_ns + BURST_NS + report.longest_plan_ns
    assert spent_ns >= 0.9 * 0.05 * whole_ns, "and what it may have it gets"


def test_one_that_costs_little_is_always_asked() -> None:
    report = drive(Slow(100_000, 1000), 0.05, 500)[0].report()
    assert (report.skipped, report.compared) == (0, 500)


@pytest.mark.parametrize("slow", [Slow(0, 2 * NS_PER_MS), Slow(DEBT_NS + BURST_NS + 1, 0)], ids=["observing", "plan"])
def test_one_that_cannot_keep_to_its_share_is_switched_off(slow: Slow) -> None:
    shadow, _ = drive(slow, 0.05, 2000)
    assert shadow.policy is None
    assert "more than its share of the time, 0.05" in shadow.report().off


def test_every_policy_is_what_it_was_through_the_wrapper() -> None:
    for name in names("policies"):
        policy: Any = make_policy(name)
        wrapped: Any = Beside(policy, Shadow(policy, name, {}))
        assert wrapped.promises == policy.promises
        assert getattr(wrapped, "parts", {}) == getattr(policy, "parts", {})
        assert getattr(wrapped, "predictor", None) is getattr(policy, "predictor", None)
        assert wrapped.dump() == (policy.dump() if hasattr(policy, "dump") else None)
