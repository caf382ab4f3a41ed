"""The laws about tables and pages that can be checked from the scheduler's state (``INVARIANTS.md`` numbers them)."""

from __future__ import annotations

from collections import Counter

from stepwell.core.errors import InvariantError
from stepwell.core.request import STANDING
from stepwell.core.state import State
from stepwell.core.types import RequestState

_PLACES: dict[str, tuple[RequestState, ...]] = {
    "waiting": (RequestState.WAITING,),
    "followers": (RequestState.WAITING,),
    "loose": (RequestState.PREFILLING, RequestState.DECODING, RequestState.SWAPPING_IN),
    "draining": (RequestState.PREFILLING, RequestState.DECODING),
    "swapped": (RequestState.SWAPPING_OUT, RequestState.SWAPPED),
    "group": (RequestState.DECODING,),
}


def check_state(state: State) -> None:
    """Raise ``InvariantError`` naming the first law that does not hold.  Costs O(live requests + pages)."""
    tables = {
        "waiting": state.waiting,
        "loose": state.loose,
        "draining": state.draining,
        "swapped": state.swapped,
        "group": state.group.members,
        "followers": state.followers.all(),
    }
    if sum(len(table) for table in tables.values()) != len(state.requests):
        raise InvariantError(
            f"I2 one place each: {len(state.requests)} requests, {[(k, len(v)) for k, v in tables.items()]}"
        )
    for name, table in tables.items():
        for id, request in table.items():
            if state.requests.get(id) is not request or request.state not in _PLACES[name]:
                raise InvariantError(f"I2 one place each: request {id} is in {name}: {request.tell()}")
            if (request.counter is STANDING) == (name == "group"):
                raise InvariantError(f"I2 one place each: request {id} in {name} has the wrong counter")
    for request in state.requests.values():
        _check_numbers(state, request.id)
    for parent in state.followers.by_parent:
        if parent not in state.requests or state.requests[parent].stands:
            raise InvariantError(
                f"I5 progress: requests wait for the prompt of request {parent}, which is there or gone"
            )
    _check_calendars(state)
    known = sum(request.known for request in state.group.members.values())
    if state.group.known() != known:
        raise InvariantError(f"I3 tokens add up: the group counts {state.group.known()} tokens, its members {known}")
    seats = len(state.group.members) + len(state.loose) + len(state.draining)
    if seats > state.limits.running_limit:
        raise InvariantError(f"I4 budgets: {seats} run, the limit is {state.limits.running_limit}")
    classes = Counter(request.klass for request in state.requests.values())
    if any(count != classes[name] for name, count in state.backlog.live.items()):
        raise InvariantError(f"I2 one place each: counted {state.backlog.live} by class, there are {dict(classes)}")
    usage = state.allocator.usage()
    if usage.free + usage.used + usage.returning != usage.total:
        raise InvariantError(f"I1 pages conserved: {usage}")
    state.allocator.check()


def _check_numbers(state: State, id: int) -> None:
    request = state.requests[id]
    grouped = request.counter is state.group
    capacity = request.base + request.phase.full_at if grouped else request.capacity
    if request.state is RequestState.WAITING:
        good = request.computed == 0 and request.pending >= request.prompt_tokens
    elif request.state in _PLACES["swapped"]:
        good = request.computed > 0
    else:
        tokens = len(state.allocator.table(id)) * state.allocator.page_size
        good = request.computed <= capacity <= tokens
    good = good and request.pending >= 1 and request.known <= request.prompt_tokens + request.max_tokens
    if not good:
        raise InvariantError(
            f"I3 tokens: request {id} has {request.computed} computed, {request.pending} pending, room for {capacity}, "
            f"prompt {request.prompt_tokens}, at most {request.max_tokens}: {request.tell()}"
        )


def _check_calendars(state: State) -> None:
    group = state.group
    for request in group.members.values():
        if request.id not in group.ends.get(request.end_at, ()):
            raise InvariantError(f"I3 tokens: request {request.id} has no end in the decode group's calendar")
        phase = request.phase
        if group.full.get(phase.full_at) is not phase or request.id not in phase.members:
            raise InvariantError(f"I3 tokens: request {request.id} has no growth in the decode group's calendar")
        if phase.full_at < group.launched:
            raise InvariantError(f"I3 tokens: request {request.id} computes beyond its pages")
    for due in (*group.ends.values(), *(phase.members for phase in group.full.values())):
        for id in due:
            if id not in group.members:
                raise InvariantError(f"I3 tokens: request {id} left the group but not its calendar")
