"""``/admin/requests``: who runs and who waits, since when, and why."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from stepwell.core.request import Request as Live
from stepwell.core.types import DECODING, NS_PER_S, PREFILLING, WAITING, RequestState
from stepwell.transports.errors import RequestError
from stepwell.transports.http.admin_guard import guarded
from stepwell.transports.http.admin_shared import when
from stepwell.transports.http.body import service_of
from stepwell.transports.service import Service

SHOWN, MOST_SHOWN = 100, 1000

OBSTACLES = {
    "pages": "KV pages",
    "seats": "a seat: as many run as may (scheduler.running_limit)",
    "budget": "room in the step's token budget",
    "in_flight": "a step in flight that still names it",
    "policy": "the policy, which holds it back",
}
"""What a request waits for, by the scheduler's word."""


async def listed(request: Request) -> Response:
    """``GET /admin/requests?state=&class=&tenant=&limit=``, in order of arrival."""
    service = service_of(request)
    query = request.query_params
    states = [each.value for each in RequestState]
    for name in query:
        if name not in ("state", "class", "tenant", "limit"):
            raise RequestError("is not known: state, class, tenant and limit are", field=name[:64])
    if query.get("state", WAITING.value) not in states:
        raise RequestError(f"is one of {', '.join(states)}", field="state")
    limit = query.get("limit", str(SHOWN))
    if not limit.isascii() or not limit.isdigit() or not 1 <= int(limit[:9]) <= MOST_SHOWN:
        raise RequestError(f"is a number from 1 to {MOST_SHOWN}", field="limit")
    found = [
        each
        for each in service.scheduler.state.requests.values()
        if query.get("state", each.state.value) == each.state.value
        and query.get("class", each.klass) == each.klass
        and query.get("tenant", each.tenant) == each.tenant
    ]
    line = _line(service)
    shown = [_row(service, each, line) for each in found[: int(limit)]]
    return JSONResponse({"total": len(found), "shown": len(shown), "requests": shown})


async def one(request: Request) -> Response:
    """``GET /admin/requests/{id}``: the same, and its life so far.  The id is a number, or what a client was told."""
    service = service_of(request)
    given = request.path_params["id"]
    id = service.names.number(given)
    live = service.scheduler.state.requests.get(id) if id is not None else None
    if live is None:
        known = f" ({id} in the journal)" if id is not None and str(id) != given else ""
        raise RequestError(
            f"there is no request {given[:20]!r}{known} in progress; the journal has those that ended"
            " (`stepwell explain`)",
            status=404,
            code="request_not_found",
        )
    story = [{"at": when(service, at), "state": state.value, "why": why} for at, state, why in live.story]
    return JSONResponse({**_row(service, live, _line(service)), "story": story})


def _line(service: Service) -> dict[int, int]:
    """Places in the waiting line, in the order in which it was joined; the policy may take another."""
    return {id: place for place, id in enumerate(service.scheduler.state.waiting, 1)}


def _row(service: Service, live: Live, line: dict[int, int]) -> dict[str, object]:
    state, now_ns = service.scheduler.state, service.clock.now_ns()
    since_ns = live.story[-1][0]
    row: dict[str, object] = {
        "request": live.id,
        "state": live.state.value,
        "class": live.klass,
        "tenant": live.tenant,
        "program": live.program,
        "priority": live.priority,
        "arrived": when(service, live.arrival_ns),
        "age_s": round((now_ns - live.arrival_ns) / NS_PER_S, 3),
        "in_state_s": round((now_ns - since_ns) / NS_PER_S, 3),
        "prompt_tokens": live.prompt_tokens,
        "generated_tokens": state.visible_tokens(live),
        "max_tokens": live.max_tokens,
        "computed_tokens": live.computed,
        "preemptions": live.preemptions,
        "pages": len(state.allocator.table(live.id)),
        "why": "; ".join(_why(service, live)),
    }
    if live.id in line:
        row["place"] = line[live.id]
    if live.parent:
        row["parent"] = live.parent
    return row


def _why(service: Service, live: Live) -> Iterator[str]:
    """What it waits for, or does."""
    scheduler = service.scheduler
    if scheduler.paused:
        yield "an operator has paused the engine"
    if live.state is PREFILLING:
        yield f"{live.pending} known tokens are to be computed"
    elif live.state is DECODING:
        yield "it is given a token a step"
    elif live.state is WAITING:
        yield from _waits(service, live)
    else:
        yield live.story[-1][2]


def _waits(service: Service, live: Live) -> Iterator[str]:
    state, blocked = service.scheduler.state, service.scheduler.blocked
    if live in state.followers:
        yield f"it waits for the prompt of request {live.parent}, which is its own too"
        return
    if live.preemptions or live.failures:
        yield f"it was sent back: {live.story[-1][2]}"
    if blocked is not None:
        short = f", {blocked.short} short" if blocked.short else ""
        whose = "it is at the head of the line" if blocked.request == live.id else f"request {blocked.request} is"
        yield f"{whose}, and waits for {OBSTACLES[blocked.reason]}{short}"
    elif not service.scheduler.paused:
        ahead = next(islice(state.waiting, 1), live.id)
        yield "it is in line" if ahead == live.id else f"it is in line, with request {ahead} there the longest"


REQUESTS = (
    Route("/admin/requests", guarded(listed), methods=["GET"]),
    Route("/admin/requests/{id}", guarded(one), methods=["GET"]),
)
