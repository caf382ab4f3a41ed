"""The scheduler's whole state as data, so that a journal segment can begin in the middle of things.

A scheduler restored from a snapshot decides as the one it was taken from: orders within tables and calendars are kept,
because they decide who gets which page.  The policy is rebuilt by observing the live requests, and is given
back what it remembers beyond them.
"""

from __future__ import annotations

from heapq import heapify
from typing import TYPE_CHECKING, Any

import msgspec

from stepwell.core.errors import UserError
from stepwell.core.group import DecodeGroup
from stepwell.core.plan import Obstacle
from stepwell.core.request import STANDING, Phase, Request
from stepwell.core.state import State, StepRecord
from stepwell.core.types import RequestId, RequestState, StepId

if TYPE_CHECKING:
    from stepwell.core.scheduler import Scheduler

Ids = list[RequestId]
Dates = list[tuple[int, Ids]]


class RequestSnapshot(msgspec.Struct, array_like=True):
    """One request; ``story`` as (ns, state, why)."""

    id: RequestId
    klass: str
    rank: int
    tenant: str
    arrival_ns: int
    expires_ns: int
    prompt_tokens: int
    max_tokens: int
    keys: list[int]
    state: RequestState
    base: int
    pending: int
    capacity: int
    last_step: StepId
    preemptions: int
    failures: int
    excused: RequestId
    protected: bool
    started: bool
    joined_at: int
    left_at: int
    end_at: int
    shown: bool
    story: list[tuple[int, RequestState, str]]
    priority: int = 0
    program: str = ""
    parent: RequestId = 0
    stands: bool = False


class StepSnapshot(msgspec.Struct, array_like=True):
    """A step in flight; ``computed`` as (request, tokens)."""

    id: StepId
    tick: int
    last: Ids
    sampled: Ids
    copies: Ids
    computed: list[tuple[RequestId, int]] = []
    prefill: int = 0
    pages: int = 0


class SchedulerSnapshot(msgspec.Struct, kw_only=True, omit_defaults=True):
    """See the module.  ``memory`` is what the policy knows that the live requests do not tell."""

    now_ns: int
    next_step: StepId
    done: StepId
    last_id: RequestId
    policy: str
    options: dict[str, object]
    faulted: bool
    silent_steps: int
    idle_wakes: int
    repeat: int
    until_ns: int
    blocked: Obstacle | None
    expiries: list[tuple[int, RequestId]]
    requests: list[RequestSnapshot]
    waiting: Ids
    loose: Ids
    swapped: Ids
    draining: Ids
    joining: Ids
    inflight: list[StepSnapshot]
    launched: int
    group_step: StepId
    members: Ids
    joined: Ids
    left: Ids
    full: Dates
    ends: Dates
    allocator: msgspec.Raw
    speeds: list[Any] = []
    memory: object = None
    followers: Ids = []
    paused: bool = False


_COPIED = tuple(field for field in RequestSnapshot.__struct_fields__ if field not in ("keys", "story"))


def capture(scheduler: Scheduler) -> SchedulerSnapshot:
    """Take a snapshot between two calls of ``handle``."""
    state, group = scheduler.state, scheduler.state.group
    return SchedulerSnapshot(
        now_ns=state.now_ns,
        next_step=state.next_step,
        done=state.progress.done,
        last_id=scheduler.last_id,
        policy=scheduler.policy_name,
        options=scheduler.policy_options,
        faulted=scheduler.faulted,
        silent_steps=state.silent_steps,
        idle_wakes=scheduler.idle_wakes,
        repeat=scheduler.repeats.left,
        until_ns=scheduler.repeats.until_ns,
        blocked=scheduler.blocked,
        expiries=sorted(scheduler.expiries),
        requests=[_request(each) for each in state.requests.values()],
        waiting=list(state.waiting),
        loose=list(state.loose),
        swapped=list(state.swapped),
        draining=list(state.draining),
        joining=[each.id for each in state.joining if each.id in state.requests],
        inflight=[_step(each, state) for each in state.inflight],
        launched=group.launched,
        group_step=group.last_step,
        members=list(group.members),
        joined=list(group.joined),
        left=list(group.left),
        full=[(phase.full_at, list(phase.members)) for phase in group.full.values()],
        ends=[(count, list(due)) for count, due in group.ends.items()],
        allocator=msgspec.Raw(msgspec.json.encode(state.allocator.dump())),
        speeds=state.speeds.dump(),
        memory=scheduler.memory(),
        followers=list(state.followers.all()),
        paused=scheduler.paused,
    )


def _request(request: Request) -> RequestSnapshot:
    values = {field: getattr(request, field) for field in _COPIED}
    return RequestSnapshot(keys=list(request.keys), story=list(request.story), **values)


def _step(step: StepRecord, state: State) -> StepSnapshot:
    def live(requests: list[Request]) -> Ids:
        return [each.id for each in requests if each.id in state.requests]

    return StepSnapshot(
        step.id,
        step.tick,
        live(step.last),
        live(list(step.sampled.values())),
        live(step.copies),
        [(each.id, tokens) for each, tokens in step.computed if each.id in state.requests],
        step.prefill,
        step.pages,
    )


def restore(scheduler: Scheduler, snapshot: SchedulerSnapshot) -> None:
    """Bring a freshly built scheduler (same limits and allocator) to the state of ``snapshot``.

    Raises ``UserError`` if the snapshot does not fit together.
    """
    state = scheduler.state
    if state.requests or state.next_step != 1:
        raise UserError("a snapshot is restored into a fresh scheduler only")
    scheduler.last_id = snapshot.last_id
    scheduler.faulted = snapshot.faulted
    scheduler.paused = snapshot.paused
    scheduler.idle_wakes = snapshot.idle_wakes
    scheduler.state.silent_steps = snapshot.silent_steps
    scheduler.repeats.left = snapshot.repeat
    scheduler.repeats.until_ns = snapshot.until_ns
    scheduler.repeats.launched_ns = snapshot.now_ns  # by the turn that the snapshot follows, if it repeats
    scheduler.blocked = snapshot.blocked
    scheduler.expiries[:] = snapshot.expiries
    state.now_ns = snapshot.now_ns
    state.next_step = snapshot.next_step
    state.progress.done = snapshot.done
    try:
        state.allocator.load(msgspec.json.decode(snapshot.allocator))
        if snapshot.speeds:
            state.speeds.load(snapshot.speeds)
        _restore_requests(state, snapshot)
        _restore_group(state.group, snapshot, state.requests)
        _restore_steps(state, snapshot)
    except (KeyError, msgspec.DecodeError) as error:
        raise UserError(f"the snapshot does not fit together: {type(error).__name__} {error}") from None
    scheduler.use(snapshot.policy, snapshot.options, snapshot.memory)


def _restore_requests(state: State, snapshot: SchedulerSnapshot) -> None:
    for each in snapshot.requests:
        request = Request(
            each.id,
            each.prompt_tokens,
            each.max_tokens,
            each.klass,
            each.rank,
            each.tenant,
            each.arrival_ns,
            each.expires_ns,
            each.keys,
            state.progress,
        )
        for field in _COPIED:
            setattr(request, field, getattr(each, field))
        request.story = each.story
        state.backlog.endow(request)
        state.requests[each.id] = request
        if not each.started:
            state.backlog.add(request)
    for table, ids in (
        (state.waiting, snapshot.waiting),
        (state.loose, snapshot.loose),
        (state.swapped, snapshot.swapped),
        (state.draining, snapshot.draining),
    ):
        table.update((id, state.requests[id]) for id in ids)
    state.joining += [state.requests[id] for id in snapshot.joining]
    for id in snapshot.followers:
        state.followers.add(state.requests[id])


def _restore_group(group: DecodeGroup, snapshot: SchedulerSnapshot, requests: dict[RequestId, Request]) -> None:
    group.launched = snapshot.launched
    group.last_step = snapshot.group_step
    group.members.update((id, requests[id]) for id in snapshot.members)
    group.bases = sum(request.base for request in group.members.values())
    group.joined.update((id, requests[id]) for id in snapshot.joined)
    group.left += snapshot.left
    for request in requests.values():
        request.counter = group if request.id in group.members else STANDING
    for count, ids in snapshot.ends:
        group.ends[count] = {id: requests[id] for id in ids}
    for count, ids in snapshot.full:
        phase = group.full[count] = Phase(count)
        for id in ids:
            phase.members[id] = requests[id]
            requests[id].phase = phase
    group.end_counts[:] = list(group.ends)
    heapify(group.end_counts)


def _restore_steps(state: State, snapshot: SchedulerSnapshot) -> None:
    requests = state.requests
    for each in snapshot.inflight:
        step = StepRecord(each.id, each.tick, [requests[id] for id in each.last]).open()
        step.sampled.update((id, requests[id]) for id in each.sampled)
        step.copies += [requests[id] for id in each.copies]
        step.computed += [(requests[id], tokens) for id, tokens in each.computed]
        step.prefill, step.pages = each.prefill, each.pages
        state.inflight.append(step)
