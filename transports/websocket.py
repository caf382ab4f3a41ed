"""``ws /v1/responses``: OpenAI's Responses over one socket, in lanes.

A client sends ``response.create`` with an optional ``stream_id``; responses of one lane come one after another, lanes
run beside each other, and every event names its lane.  ``response.cancel`` (ours, named as in Realtime) ends one
early.  A mistake is answered by an ``error`` event and the socket stays open; a socket that closes ends all its lanes.

How it closes: 1001 the server stops, or the socket's life is over; 1003 a message was not text; 1008 a page of another
origin, or more sockets than the tenant may have; 1009 too long a message; 1012 the engine stopped; 1013 more sockets
than there may be; 4408 nothing was said for too long.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import msgspec
from anyio.abc import TaskGroup
from starlette.websockets import WebSocket, WebSocketDisconnect

from stepwell.core.errors import CapacityError, StepwellError, UserError
from stepwell.transports.bell import Bell
from stepwell.transports.http.answering import check_model
from stepwell.transports.http.decoding import decode, decode_body
from stepwell.transports.responses.create import CREATE, Create, order_of
from stepwell.transports.responses.house import Responses
from stepwell.transports.responses.live import Live, Reader
from stepwell.transports.service import Service
from stepwell.transports.stopping import GOODBYE_S
from stepwell.transports.straight import DIRECT, cut_off, writer_of
from stepwell.transports.unstarted import Unstarted
from stepwell.transports.watch import Watch

GOING_AWAY, NOT_TEXT, POLICY, TOO_BIG = 1001, 1003, 1008, 1009
LIFETIME = GOING_AWAY
RESTART, OVERLOAD, IDLE = 1012, 1013, 4408
POLITE = (1000, GOING_AWAY, 1005)
"""How a client closes that is done, is leaving its page, or gives no reason."""


class _Kind(msgspec.Struct):
    type: str = ""
    stream_id: str | None = None


class _Cancel(msgspec.Struct):
    response_id: str | None = None
    stream_id: str | None = None


_encode = msgspec.json.Encoder().encode
_KIND = msgspec.json.Decoder(_Kind)
_CANCEL = msgspec.json.Decoder(_Cancel)


async def responses_socket(socket: WebSocket) -> None:
    """The endpoint."""
    service: Service = socket.app.state.service
    responses: Responses = socket.app.state.responses
    tenant = ""
    with contextlib.suppress(UserError):  # a response that is asked for is told
        tenant = responses.tenant(socket.headers)
    await socket.accept(next(iter(socket.scope["subprotocols"]), None))
    service.metrics.count("websockets")
    with _counted(service, responses, tenant):
        await _Socket(socket, service, responses).serve(_too_many(service, responses, tenant))


@contextmanager
def _counted(service: Service, responses: Responses, tenant: str) -> Iterator[None]:
    sockets = responses.sockets
    service.sockets_open += 1
    sockets[tenant] = sockets.get(tenant, 0) + 1
    try:
        yield
    finally:
        service.sockets_open -= 1
        sockets[tenant] -= 1
        if not sockets[tenant]:
            del sockets[tenant]


def _too_many(service: Service, responses: Responses, tenant: str) -> tuple[int, str] | None:
    """How to close at once, with this one there are more than may be."""
    limits = responses.limits
    if service.sockets_open > limits.max_sockets:
        return OVERLOAD, f"{limits.max_sockets} sockets are open"
    if limits.tenant_sockets and responses.sockets[tenant] > limits.tenant_sockets:
        return POLICY, f"a tenant has {limits.tenant_sockets} sockets at most"
    return None


class _Running:
    """One response that is in line in its lane, or on its way.  ``size``: of its message, in bytes."""

    def __init__(self, live: Live, size: int) -> None:
        self.live = live
        self.size = size


class _Socket:
    """One connection: a reader, and a task per lane that has something to do."""

    def __init__(self, socket: WebSocket, service: Service, responses: Responses) -> None:
        self._socket = socket
        self._service = service
        self._responses = responses
        self._lanes: dict[str | None, list[_Running]] = {}
        """Responses that come one after another; a lane has a task, and ceases to be with the last of them."""
        self._lane_over = Bell()
        # Not anyio's, which gives the loop a turn even if nobody holds it: that is a task switch a chunk.
        self._sending = asyncio.Lock()
        self._writer = writer_of(socket.scope.get(DIRECT))
        self._unstarted = Unstarted(service.limits.socket_mib, service.unstarted)
        self._most = int(service.limits.body_mib * (1 << 20))
        self._tasks: TaskGroup
        self._close: tuple[int, str] | None = None
        self._dropped = False
        self._life = anyio.CancelScope()
        self._watch = Watch(
            service.clock.now_ns,
            service.limits.send_timeout_s,
            self._drop,
            ping_s=responses.limits.idle_s,
            silent=self._be_silent,
        )

    async def serve(self, refused: tuple[int, str] | None = None) -> None:
        """Until either side closes; every lane ends with it.  ``refused``: at once, and why."""
        service = self._service
        try:
            async with anyio.create_task_group() as self._tasks:
                # The last words are watched too: who takes nothing would wait for its turn to get them for ever.
                with service.watching(self._watch), service.stopping.tells(self._begin_drain):
                    if refused is not None:
                        await self._say_error(CapacityError(refused[1], code="too_many_sockets"), None)
                        self._close = refused
                    else:
                        await self._live()
                self._tasks.cancel_scope.cancel()
        except* (OSError, WebSocketDisconnect, RuntimeError):
            service.metrics.count("disconnected")
        finally:
            for lane in self._lanes.values():
                for running in lane:
                    self._begun(running)
                    running.live.cancel()
        if service.stopping.is_set() and self._close is None:
            self._close = (GOING_AWAY, "the server is shutting down")
        if self._close is not None:
            with contextlib.suppress(RuntimeError, OSError, WebSocketDisconnect), anyio.move_on_after(1):
                await self._socket.close(*self._close)
        elif self._dropped:
            cut_off(self._socket.scope)

    async def _live(self) -> None:
        """Read, for as long as it may live."""
        self._life.deadline = anyio.current_time() + self._service.limits.socket_s
        with self._life:
            await self._read()
        if self._life.cancelled_caught and self._close is None:
            text, code = "sockets live no longer than this", "websocket_connection_limit_reached"
            await self._say_error(CapacityError(text, code=code), None, status=400)
            self._close = (LIFETIME, "lifetime")

    def _be_silent(self) -> None:
        """Nothing was said for long: who waits for an answer may go on waiting."""
        if not self._lanes:
            self._end(IDLE, "nothing was said for too long")

    def _end(self, code: int, why: str) -> None:
        self._close = self._close or (code, why)
        self._life.cancel()

    def _begin_drain(self) -> None:
        self._tasks.start_soon(self._drain)

    async def _drain(self) -> None:
        """When serving ends, every response fails; as soon as all have been told, the socket closes."""
        with anyio.move_on_after(GOODBYE_S):
            while self._lanes:
                await self._lane_over.heard()
        self._tasks.cancel_scope.cancel()

    async def _read(self) -> None:
        """Messages in, until the client closes or has to be closed upon."""
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                # Who just vanishes gets the code 1005 too, but no reason, not even an empty one.
                if message.get("code") not in POLITE or "reason" not in message:
                    self._service.metrics.count("disconnected")
                return
            text = message.get("text")
            if text is None:
                self._close = NOT_TEXT, "messages are text"
                return
            if len(text) > self._most:
                self._close = TOO_BIG, f"messages are {self._service.limits.body_mib:g} MiB at most"
                return
            await self._take(text.encode("utf-8", "replace"))

    async def _take(self, body: bytes) -> None:
        lane: str | None = None
        try:
            kind = decode(body, _KIND)
            lane = kind.stream_id
            if kind.type == "response.create":
                self._create(await decode_body(body, CREATE), len(body))
            elif kind.type == "response.cancel":
                self._cancel(decode(body, _CANCEL))
            else:
                raise UserError(
                    f"{kind.type[:60]!r} is not known: response.create and response.cancel are", field="type"
                )
        except StepwellError as error:
            await self._say_error(error, lane)

    def _create(self, asked: Create, size: int) -> None:
        service, limits = self._service, self._service.limits
        check_model(service, asked.model)
        service.check_taking()
        if asked.background:
            raise UserError("is for HTTP; here a closed socket ends its responses", field="background")
        running = _Running(self._responses.live(order_of(asked, service, self._socket.headers)), size)
        lane = self._lanes.get(asked.stream_id)
        if lane is None and len(self._lanes) >= limits.max_lanes:
            raise CapacityError(f"a socket has {limits.max_lanes} lanes at most", code="too_many_lanes")
        if lane is not None and len(lane) >= limits.lane_queue:
            raise CapacityError(f"a lane holds {limits.lane_queue} responses at most", code="lane_full")
        self._unstarted.take(size)
        if lane is None:
            lane = self._lanes[asked.stream_id] = []
            self._tasks.start_soon(self._run_lane, asked.stream_id, lane)
        lane.append(running)

    def _cancel(self, asked: _Cancel) -> None:
        """By id, or all of a lane."""
        here = [each for lane in self._lanes.values() for each in lane]
        if asked.response_id is not None:
            here = [each for each in here if each.live.id == asked.response_id]
        else:
            here = [each for each in here if each.live.order.lane == asked.stream_id]
        if not here:
            raise UserError("there is no such response in progress", field="response_id")
        for each in here:
            each.live.cancel()

    async def _run_lane(self, name: str | None, lane: list[_Running]) -> None:
        """One response after another; an empty lane ceases to be."""
        while lane:
            running = lane[0]
            try:
                await self._respond(running)
            except StepwellError as error:
                await self._say_error(error, name)
            except (OSError, WebSocketDisconnect):
                await anyio.sleep_forever()  # the client is gone; the reader hears how, and ends everything
            finally:
                lane.remove(running)
                self._begun(running)
        del self._lanes[name]
        self._lane_over.ring()
        if self._service.alive:
            self._end(RESTART, "the engine stopped")

    async def _respond(self, running: _Running) -> None:
        live = running.live
        await live.begin()
        self._begun(running)
        reader = live.read()
        reader.dropped_by(self._drop, self._service.limits.buffer_kib << 10)
        reader.straight(self._service.outlet, lambda: self._straight(reader, live.order.lane))
        try:
            while True:
                await self._say(data for _, data in reader.events(live.order.lane))
                if reader.over:
                    return
                await reader.news()
        finally:
            reader.leave()

    def _straight(self, reader: Reader, lane: str | None) -> bool:
        """Straight to the transport, if it takes it now and no other lane is in the middle of something."""
        writer = self._writer
        if writer is None or self._sending.locked() or reader.ending or not writer.free:
            return False
        parts = [data for _, data in reader.events(lane)]
        if parts:
            writer.write(parts)
            self._watch.wrote()
        return True

    def _begun(self, running: _Running) -> None:
        """It began, or never will.  Harmless the second time."""
        self._unstarted.give(running.size)
        running.size = 0

    def _drop(self) -> None:
        """It takes too little: with more waiting than is allowed, the socket ends."""
        self._service.metrics.count("slow_client")
        self._dropped = True
        self._tasks.cancel_scope.cancel()

    # ------------------------------------------------------------------------------------------- out

    async def _say(self, events: Iterable[bytes]) -> None:
        """Whole, whatever other lanes say.  A client that takes nothing for too long loses the socket."""
        async with self._sending:
            if self._writer is not None and self._writer.free:
                if parts := list(events):
                    self._writer.write(parts)
                    self._watch.wrote()
                return
            for event in events:
                self._watch.sending()
                await self._socket.send({"type": "websocket.send", "text": event.decode()})
                self._watch.sent()

    async def _say_error(self, error: StepwellError, lane: str | None, status: int = 0) -> None:
        refusal = self._service.refusal(error)
        event: dict[str, Any] = {
            "type": "error",
            "status": status or refusal.status,
            "error": {**refusal.error, "headers": dict(refusal.headers)},
        }
        if lane is not None:
            event["stream_id"] = lane
        await self._say([_encode(event)])
