"""``GET /admin/events``: what happens and what is decided, as it does, for whoever draws it.

Server-sent events, one a turn of the scheduler that is not filtered out; ``id`` is the turn's number, from which a
listener that comes back goes on (``Last-Event-ID``, or ``?after=``).  A listener that is too slow for the ring is told
how many turns it missed.  The engine never waits: each listener reads the ring at its own pace, a few times a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import anyio
import msgspec
from anyio.lowlevel import checkpoint
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from stepwell.core.errors import CapacityError
from stepwell.core.events import Event, Submitted
from stepwell.core.instructions import Finished, Instruction, Launch, Rejected
from stepwell.transports.bell import Bell
from stepwell.transports.decisions import Decided
from stepwell.transports.errors import RequestError
from stepwell.transports.http.admin_guard import guarded
from stepwell.transports.http.admin_shared import when
from stepwell.transports.http.body import service_of
from stepwell.transports.http.sse import HEADERS, PING, only_head
from stepwell.transports.service import Service
from stepwell.transports.straight import cut_off

PERIOD_S = 0.1
"""A listener is told of what happened so often, at most."""

AT_A_TIME = 64
"""Turns that are encoded before the event loop sees to everything else."""

_LEFT_OUT = ("keys", "growth", "tables", "slices", "copies", "swap_in", "swap_out")
"""Pages and their contents: long, and nothing to look at."""

_encode = msgspec.json.Encoder().encode
_FILTERS = ("kinds", "request", "tenant", "class", "after")


class Wanted(msgspec.Struct, frozen=True):
    """Which events and decisions a listener asked for; empty: all."""

    kinds: tuple[str, ...] = ()
    request: int = 0
    tenant: str = ""
    klass: str = ""
    after: int = -1
    """The last turn that it had; -1: none, and it begins now."""


def kind_of(item: Event | Instruction) -> str:
    """The journal's word for it."""
    return str(type(item).__struct_config__.tag)


async def events(request: Request) -> Response:
    """The endpoint."""
    service = service_of(request)
    if service.decisions.listeners >= service.config.admin.event_listeners:
        raise CapacityError(
            f"{service.decisions.listeners} listen already (admin.event_listeners)", code="too_many_listeners"
        )
    wanted = _wanted(request)
    return only_head({}) if request.method == "HEAD" else _Listener(service, wanted)


def _wanted(request: Request) -> Wanted:
    query: Mapping[str, str] = request.query_params
    for name in query:
        if name not in _FILTERS:
            raise RequestError(f"is not known: {', '.join(_FILTERS)} are", field=name[:64])
    numbers = {"request": query.get("request", "0"), "after": query.get("after", "")}
    numbers["after"] = numbers["after"] or request.headers.get("last-event-id", "") or "-1"
    for name, text in numbers.items():
        if not text.removeprefix("-").isdigit() or not text.isascii() or len(text) > 18:
            raise RequestError("is a whole number", field=name)
    return Wanted(
        tuple(each for each in query.get("kinds", "").split(",") if each),
        int(numbers["request"]),
        query.get("tenant", ""),
        query.get("class", ""),
        int(numbers["after"]),
    )


class _Listener(Response):
    """One connection: a place in the ring."""

    media_type = "text/event-stream"

    def __init__(self, service: Service, wanted: Wanted) -> None:
        super().__init__(headers=HEADERS, media_type=self.media_type)
        self.raw_headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]
        self._service = service
        self._ring = service.decisions
        self._bell = Bell()
        self._filter = Filter(service, wanted)
        self._next = wanted.after + 1 if wanted.after >= 0 else self._ring.turn + 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._ring.listen(self._bell)
        try:
            async with anyio.create_task_group() as tasks:
                with self._service.stopping.ends(tasks.cancel_scope, 0.0):
                    tasks.start_soon(self._stream, send, tasks.cancel_scope)
                    while (await receive())["type"] != "http.disconnect":
                        pass
                    tasks.cancel_scope.cancel()
        except* OSError:
            pass
        finally:
            self._ring.leave(self._bell)
        cut_off(scope)

    async def _stream(self, send: Send, scope: anyio.CancelScope) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        if self._next > self._ring.turn + 1:  # of another life of this server
            self._next = self._ring.first
        body = self._hello()
        while True:
            if body:
                with anyio.move_on_after(self._service.limits.send_timeout_s) as sending:
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                if sending.cancelled_caught:  # it takes nothing at all
                    self._service.metrics.count("slow_client")
                    scope.cancel()
            body = await self._news()

    def _hello(self) -> bytes:
        service = self._service
        about = {
            "turn": self._ring.turn,
            "first": self._ring.first,
            "next": self._next,
            "policy": service.scheduler.policy_name,
            "paused": service.scheduler.paused,
            "token_budget": service.config.scheduler.token_budget,
            "pages": service.config.memory.pages,
        }
        return b"event: hello\ndata: " + _encode(about) + b"\n\n"

    async def _news(self) -> bytes:
        """What is new of the ring, or a comment after a long silence."""
        ring = self._ring
        if self._next > ring.turn:
            await anyio.sleep(PERIOD_S)
            with anyio.move_on_after(self._service.limits.ping_s) as silence:
                await self._bell.heard()
            if silence.cancelled_caught:
                return PING
        await checkpoint()
        body = b""
        missed = ring.first - self._next
        if missed > 0:
            body = b"event: missed\ndata: " + _encode({"turns": missed, "next": ring.first}) + b"\n\n"
            self._next = ring.first
            self._filter.missed(decided for _, decided in ring.since(ring.first, ring.turn))
        for turn, decided in ring.since(self._next, AT_A_TIME):
            body += self._frame(turn, decided)
            self._next = turn + 1
        return body

    def _frame(self, turn: int, decided: Decided) -> bytes:
        came, out = self._filter.events(decided.events), self._filter.decisions(decided.instructions)
        if not came and not out:
            return b""
        told = {
            "turn": turn,
            "at": when(self._service, decided.now_ns),
            "now_ns": decided.now_ns,
            "decoding": decided.decoding,
            "events": came,
            "decisions": out,
        }
        return b"id: %d\nevent: turn\ndata: %b\n\n" % (turn, _encode(told))


class Filter:
    """Turns events and decisions into what a listener is told of them."""

    def __init__(self, service: Service, wanted: Wanted) -> None:
        self._service = service
        self._wanted = wanted
        self._whose = bool(wanted.tenant or wanted.klass)
        self._theirs: dict[int, bool] = {}
        """Of requests that a listener to a tenant or a class has heard of: whether they are meant."""

    def events(self, events: Iterable[Event]) -> list[dict[str, Any]]:
        if self._whose:
            for event in events:
                if isinstance(event, Submitted):
                    self._theirs[event.request] = self._meant(event.tenant, event.klass)
        return [_told(each) for each in self._chosen(events)]

    def decisions(self, instructions: Iterable[Instruction]) -> list[dict[str, Any]]:
        told = [_told(each) for each in self._chosen(instructions)]
        if self._whose:
            for each in instructions:
                if isinstance(each, Finished | Rejected):
                    self._theirs.pop(each.request, None)
        return told

    def missed(self, left: Iterable[Decided]) -> None:
        """Turns were missed, with ends in them perhaps: of a request is heard again only if it lives, or if its end is
        among the turns that are ``left``."""
        live = self._service.scheduler.state.requests
        ending = {each.request for turn in left for each in turn.instructions if isinstance(each, Finished | Rejected)}
        self._theirs = {id: meant for id, meant in self._theirs.items() if id in live or id in ending}

    def _chosen(self, items: Iterable[Event] | Iterable[Instruction]) -> Iterator[Event | Instruction]:
        wanted = self._wanted
        for item in items:
            if wanted.kinds and kind_of(item) not in wanted.kinds:
                continue
            request = getattr(item, "request", 0)
            if wanted.request and request != wanted.request:
                continue
            if not self._whose or (request and self._is_theirs(request)):
                yield item

    def _is_theirs(self, request: int) -> bool:
        found = self._theirs.get(request)
        if found is None:
            live = self._service.scheduler.state.requests.get(request)
            found = live is not None and self._meant(live.tenant, live.klass)
        return found

    def _meant(self, tenant: str, klass: str) -> bool:
        wanted = self._wanted
        return wanted.tenant in ("", tenant) and wanted.klass in ("", klass)


def _told(item: Event | Instruction) -> dict[str, Any]:
    told: dict[str, Any] = {"kind": kind_of(item)}
    told |= {name: value for name, value in msgspec.structs.asdict(item).items() if name not in _LEFT_OUT}
    if "klass" in told:
        told["class"] = told.pop("klass")
    if isinstance(item, Launch):
        told["prefills"] = [(id, start, tokens) for id, start, tokens, _ in item.slices]
        told["prefill_tokens"] = sum(tokens for _, _, tokens, _ in item.slices)
        told["swapped_out"] = [id for id, *_ in item.swap_out]
        told["swapped_in"] = [id for id, *_ in item.swap_in]
    return told


EVENTS = (Route("/admin/events", guarded(events), methods=["GET"]),)
