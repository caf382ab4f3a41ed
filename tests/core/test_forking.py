"""Choices of one prompt: computed once, shared by copying on write, each a running request of its own."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from stepwell.core import registry
from stepwell.core.config import MemoryConfig
from stepwell.core.errors import InvariantError
from stepwell.core.events import Cancel, Event, StepDone, StepFailed, Submitted
from stepwell.core.instructions import Admitted, Finished, Instruction, Launch, Preempted, Rejected
from stepwell.core.invariants import check_state
from stepwell.core.limits import SchedulerLimits
from stepwell.core.plan import Preemption, StepPlan
from stepwell.core.protocols import PolicyEvent, Promises, SchedulerView
from stepwell.core.scheduler import Scheduler
from stepwell.core.snapshot import SchedulerSnapshot, capture, restore

A, B, C = 1, 2, 3


class Watching:
    """FCFS without chunks, which notes what it is told, and sends away whom it is asked to."""

    promises = Promises()

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []
        self.send: list[Preemption] = []
        self.seats = 8

    def observe(self, event: PolicyEvent) -> None:
        self.told.append((event.kind, event.request.id))

    def plan(self, view: SchedulerView) -> StepPlan:
        send, self.send = self.send, []
        admit = [
            (each.id, each.pending - view.cached_tokens(each))
            for each in view.waiting.values()
            if each.ready and not view.pages_missing(each)
        ][: max(0, self.seats - view.running)]
        if send:
            admit = []
        slices = [
            (each.id, each.pending) for each in view.loose.values() if not any(it.request == each.id for it in send)
        ]
        resume = [each.id for each in view.swapped.values() if each.ready and not send]
        wake_ns = 0 if admit or slices or view.decoding or resume or send else view.now_ns + 1000
        return StepPlan(admit=admit, slices=slices, preempt=send, resume=resume, wake_ns=wake_ns)


class House:
    def __init__(self, allocator: str = "paged", *, pages: int = 32, page_size: int = 4, **limits: Any) -> None:
        self.memory = MemoryConfig(allocator=allocator, pages=pages, page_size=page_size, host_pages=8)
        self.limits = SchedulerLimits(**limits)
        self.policy = Watching()
        self.scheduler = self.make()
        self.now_ns = 0

    def make(self) -> Scheduler:
        return Scheduler(self.limits, registry.make_allocator(self.memory), lambda name, options: self.policy)

    def send(self, *events: Event) -> list[Instruction]:
        self.now_ns += 1
        out = self.scheduler.handle(self.now_ns, events)
        check_state(self.scheduler.state)
        return out

    def done(self, *ended: int) -> list[Instruction]:
        return self.send(StepDone(self.scheduler.state.inflight[0].id, list(ended)))

    def drain(self) -> list[Instruction]:
        out: list[Instruction] = []
        while self.scheduler.state.inflight:
            out += self.done()
        assert not self.scheduler.state.requests
        usage = self.scheduler.state.allocator.usage()
        assert (usage.free, usage.host_free) == (usage.total, usage.host_total)
        return out

    def table(self, id: int) -> list[int]:
        return list(self.scheduler.state.allocator.table(id))


def choices(prompt: int, *most: int) -> list[Submitted]:
    """Requests 1, 2, …: the first, and others of its prompt."""
    return [Submitted(id, prompt, each, parent=min(id - 1, 1)) for id, each in enumerate(most, 1)]


def launch_of(out: list[Instruction]) -> Launch:
    (launch,) = [each for each in out if isinstance(each, Launch)]
    return launch


def admitted(out: list[Instruction]) -> dict[int, Admitted]:
    return {each.request: each for each in out if isinstance(each, Admitted)}


def arrived(house: House) -> list[int]:
    return [id for kind, id in house.policy.told if kind == "arrived"]


def test_the_prompt_is_computed_once_and_its_last_page_copied() -> None:
    """10 tokens in pages of 4: two pages full of the first 9 are shared, the third is copied; one token is computed."""
    house = House()
    first = launch_of(house.send(*choices(10, 5, 5, 5)))
    assert first.slices == [(A, 0, 10, True)]
    assert (arrived(house), list(house.scheduler.state.waiting)) == ([A], [])
    out = house.done()
    assert arrived(house) == [A, B, C]
    assert admitted(out) == {id: Admitted(id, 9, 2) for id in (B, C)}
    launch = launch_of(out)
    a, b, c = house.table(A), house.table(B), house.table(C)
    assert (b[:2], c[:2]) == (a[:2], a[:2])
    assert launch.copies == [(a[2], b[2]), (a[2], c[2])]
    assert launch.tables == [(B, b), (C, c)]
    assert launch.slices == [(B, 9, 1, True), (C, 9, 1, True)]
    assert house.scheduler.state.view.running == 3
    house.drain()


@pytest.mark.parametrize(("prompt", "shared", "copies"), [(1, 0, 0), (2, 1, 1), (4, 3, 1), (5, 4, 0), (9, 8, 0)])
def test_where_the_prompt_ends_decides_what_is_copied(prompt: int, shared: int, copies: int) -> None:
    house = House()
    house.send(*choices(prompt, 5, 5))
    out = house.done()
    assert admitted(out)[B].cached == shared
    assert len(launch_of(out).copies) == copies
    assert launch_of(out).slices == [(B, shared, prompt - shared, True)]
    house.drain()


def test_without_shared_pages_everything_is_copied_into_an_extent_for_the_own_limit() -> None:
    house = House("contiguous")
    house.send(*choices(10, 2, 12))
    out = house.done()
    assert admitted(out) == {B: Admitted(B, 9, 0)}
    assert launch_of(out).copies == list(zip(house.table(A), house.table(B), strict=False))[:3]
    assert len(house.table(B)) == 6
    house.drain()


def test_with_keys_the_parent_has_more_than_they_find() -> None:
    house = House("prefix")
    events = choices(10, 5, 5)
    for each in events:
        each.keys = [11, 12]
    house.send(*events)
    assert admitted(house.done())[B] == Admitted(B, 9, 2)
    house.drain()


def test_no_policy_knows_who_waits_for_a_prompt_and_the_line_counts_them() -> None:
    house = House(max_waiting=3)
    house.policy.seats = 0
    out = house.send(*choices(10, 5, 5, 5, 5))
    assert out[0] == Rejected(4, "queue_full", 3)
    assert (arrived(house), list(house.scheduler.state.waiting)) == ([A], [A])
    assert house.scheduler.state.backlog.requests == 3
    assert Finished(B, "cancelled", 0) in house.send(Cancel(B))
    assert [id for _, id in house.policy.told] == [A]
    house.policy.seats = 8
    house.send(Cancel(99))
    house.done()
    assert arrived(house) == [A, C]
    house.drain()


def test_who_waits_for_a_prompt_may_expire() -> None:
    house = House(max_waiting=3)
    house.policy.seats = 0
    events = choices(10, 5, 5)
    events[1].expires_ns = 2
    house.send(*events)
    assert Finished(B, "expired", 0) in house.send(Cancel(99))
    house.policy.seats = 8
    house.send(Cancel(99))
    house.drain()


def test_a_parent_that_ends_without_its_prompt_leaves_it_to_the_first_of_the_others() -> None:
    house = House(token_budget=64)
    house.send(*choices(10, 5, 5, 5))
    house.send(Cancel(A))
    assert arrived(house) == [A, B]
    out = house.done()
    assert admitted(out) == {B: Admitted(B, 0, 0)}
    assert admitted(house.done()) == {C: Admitted(C, 9, 2)}
    house.drain()


def test_a_parent_that_ended_or_ends_with_its_first_token_leaves_ordinary_requests() -> None:
    house = House()
    house.send(*choices(10, 1, 5, 5))
    out = house.done()
    assert [each.request for each in out if isinstance(each, Finished)] == [A]
    assert admitted(out) == {B: Admitted(B), C: Admitted(C)}
    house.send(Submitted(4, 10, 5, parent=A))
    house.drain()


def test_a_parent_sent_away_before_the_others_came_leaves_ordinary_requests() -> None:
    for mode in ("recompute", "swap"):
        house = House()
        house.policy.seats = 1
        house.send(*choices(10, 9, 5))
        house.done()
        house.policy.send = [Preemption(A, mode, "test")]
        out = house.done()
        assert [each.mode for each in out if isinstance(each, Preempted)] == [mode]
        assert house.scheduler.state.view.cached_tokens(house.scheduler.state.requests[B]) == 0
        house.policy.seats = 8
        house.send(Cancel(99))
        house.drain()


def test_one_that_comes_back_shares_its_parent_s_whole_prompt_again() -> None:
    """Three of its own tokens were computed; the prompt of 10 is there, and these and the one pending are not."""
    house = House()
    house.send(*choices(10, 20, 20))
    for _ in range(4):
        house.done()
    house.policy.send = [Preemption(B, "recompute", "test")]
    house.done()
    out = house.done()
    assert admitted(out) == {B: Admitted(B, 10, 2)}
    assert (B, 10, 4, True) in launch_of(out).slices
    house.drain()


def test_a_prompt_of_another_length_or_a_parent_to_come_is_a_shell_s_mistake() -> None:
    for wrong in (Submitted(2, 9, 5, parent=A), Submitted(2, 10, 5, parent=2), Submitted(2, 10, 5, parent=7)):
        house = House()
        house.send(Submitted(1, 10, 5))
        with pytest.raises(InvariantError, match="bad arrival"):
            house.send(wrong)


def test_a_failed_step_computes_nobody_s_prompt() -> None:
    house = House()
    house.send(*choices(10, 5, 5))
    house.send(StepFailed(1, [], "test"))
    assert arrived(house) == [A]
    house.done()
    assert arrived(house) == [A, B]
    out = house.send(StepFailed(3, [A], "test"))
    assert [each.request for each in out if isinstance(each, Finished)] == [A]
    assert admitted(out) == {B: Admitted(B)}
    house.drain()


def test_a_copy_that_finds_no_page_changes_nothing() -> None:
    """Three pages for the first, one of five left: B finds its copy's page, and C, taken in all the same, does not."""
    house = House(pages=4)
    house.send(*choices(10, 2, 2, 2))
    plan = house.policy.plan
    house.policy.plan = lambda view: StepPlan(admit=[(B, 1), (C, 1)]) if view.waiting else plan(view)  # type: ignore[method-assign]
    before = house.scheduler.state.allocator.usage().used
    out = house.done()
    assert (before, house.scheduler.state.allocator.usage().used) == (3, 4)
    assert list(admitted(out)) == [B]
    assert ("refused", C) in house.policy.told
    house.policy.plan = plan  # type: ignore[method-assign]
    house.drain()


@pytest.mark.parametrize("turns", [0, 1, 2])
def test_a_snapshot_carries_who_waits_for_whom(turns: int) -> None:
    house = House()
    house.send(*choices(10, 5, 5, 5))
    for _ in range(turns):
        house.done()
    data = msgspec.json.encode(capture(house.scheduler))
    twin = house.make()
    restore(twin, msgspec.json.decode(data, type=SchedulerSnapshot))
    assert msgspec.json.encode(capture(twin)) == data
    for _ in range(9 - turns):
        step = house.scheduler.state.inflight[0].id if house.scheduler.state.inflight else 0
        if not step:
            break
        house.now_ns += 1
        events = [StepDone(step)]
        assert twin.handle(house.now_ns, events) == house.scheduler.handle(house.now_ns, events)
