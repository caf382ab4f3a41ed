"""``ws /v1/responses``: OpenAI's Responses over one socket, in lanes.

A client sends ``response.create`` with an optional ``stream_id``; responses of one lane come one after another, lanes
run beside each other, and every event names its lane.  ``response.cancel`` (ours, named as in Realtime) ends one
early.  A mistake is answered by an ``error`` event and the socket stays open; a socket that closes ends all its lanes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

import anyio
import msgspec
from anyio.abc import TaskGroup
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from starlette.websockets import WebSocket, WebSocketDisconnect

from stepwell.core.errors import CapacityError, StepwellError, UserError
from stepwell.transports.bell import Bell
from stepwell.transports.generation import Generation
from stepwell.transports.http.answering import check_model
from stepwell.transports.http.decoding import decode, decode_body
from stepwell.transports.http.wanting import wants_of
from stepwell.transports.responses import Create, ResponseEvents, chat_of
from stepwell.transports.service import Service
from stepwell.transports.stopping import GOODBYE_S
from stepwell.transports.unstarted import Unstarted
from stepwell.transports.watch import Watch

GOING_AWAY, NOT_TEXT, POLICY, TOO_BIG = 1001, 1003, 1008, 1009
LIFETIME = GOING_AWAY
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
_CREATE = msgspec.json.Decoder(Create)
_CANCEL = msgspec.json.Decoder(_Cancel)


async def responses_socket(socket: WebSocket) -> None:
    """The endpoint."""
    service: Service = socket.app.state.service
    if not _origin_allowed(socket, service):
        await socket.close(POLICY, "this origin may not connect")
        return
    await socket.accept(next(iter(socket.scope["subprotocols"]), None))
    service.metrics.count("websockets")
    service.sockets_open += 1
    try:
        await _Socket(socket, service).serve()
    finally:
        service.sockets_open -= 1


def _origin_allowed(socket: WebSocket, service: Service) -> bool:
    """Browsers name the page's origin and ask nobody else, so that any page could connect to a local server."""
    origin = socket.headers.get("origin")
    if not origin or "*" in service.limits.origins or origin in service.limits.origins:
        return True
    return urlsplit(origin).netloc == socket.headers.get("host")


class _Running:
    """One response that is in line in its lane, or on its way."""

    def __init__(self, service: Service, asked: Create, headers: Mapping[str, str], size: int) -> None:
        """``headers``: of the socket; ``size``: of the message, in bytes."""
        limit = "max_tokens" if asked.max_output_tokens is None else "max_output_tokens"
        self.size = size
        self.stream_id = asked.stream_id
        self.wants = wants_of(asked, service, headers, limit=limit)
        self.messages = chat_of(asked)
        self.arguments = asked.chat_template_kwargs or {}
        self.events = ResponseEvents(service, asked, self.wants.standing.tier)
        self.generation: Generation | None = None

    def cancel(self) -> None:
        self.events.cancelled = True
        if self.generation is not None:
            self.generation.cancel()


class _Lane:
    """Responses that come one after another."""

    def __init__(self, most: int) -> None:
        self.responses: list[_Running] = []
        self.send: MemoryObjectSendStream[_Running]
        self.receive: MemoryObjectReceiveStream[_Running]
        self.send, self.receive = anyio.create_memory_object_stream[_Running](most)


class _Socket:
    """One connection: a reader, and a task per lane that has something to do."""

    def __init__(self, socket: WebSocket, service: Service) -> None:
        self._socket = socket
        self._service = service
        self._lanes: dict[str | None, _Lane] = {}
        self._lane_over = Bell()
        # Not anyio's, which gives the loop a turn even if nobody holds it: that is a task switch a chunk.
        self._sending = asyncio.Lock()
        self._unstarted = Unstarted(service.limits.socket_mib, service.unstarted)
        self._most = int(service.limits.body_mib * (1 << 20))
        self._tasks: TaskGroup
        self._watch = Watch(service.clock.now_ns, service.limits.send_timeout_s, self._drop)

    async def serve(self) -> None:
        """Until either side closes; every lane ends with it."""
        service = self._service
        close: tuple[int, str] | None = None
        try:
            async with anyio.create_task_group() as self._tasks:
                self._tasks.start_soon(self._watch_drain)
                # The last words are watched too: who takes nothing would wait for its turn to get them for ever.
                with service.watching(self._watch):
                    with anyio.move_on_after(service.limits.socket_s) as life:
                        close = await self._read()
                    if life.cancelled_caught:
                        text, code = "sockets live no longer than this", "websocket_connection_limit_reached"
                        await self._say_error(CapacityError(text, code=code), None, status=400)
                        close = (LIFETIME, "lifetime")
                self._tasks.cancel_scope.cancel()
        except* (OSError, WebSocketDisconnect, RuntimeError):
            service.metrics.count("disconnected")
        finally:
            for lane in self._lanes.values():
                lane.send.close()
                lane.receive.close()
                for running in lane.responses:
                    self._begun(running)
        if service.stopping.is_set() and close is None:
            close = (GOING_AWAY, "the server is shutting down")
        if close is not None:
            with contextlib.suppress(RuntimeError, OSError), anyio.move_on_after(1):
                await self._socket.close(*close)

    async def _watch_drain(self) -> None:
        """When serving ends, every response fails; as soon as all have been told, the socket closes."""
        await self._service.stopping.wait()
        with anyio.move_on_after(GOODBYE_S):
            while self._lanes:
                await self._lane_over.heard()
        self._tasks.cancel_scope.cancel()

    async def _read(self) -> tuple[int, str] | None:
        """Messages in; returns how to close, or None if the client did."""
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                # Who just vanishes gets the code 1005 too, but no reason, not even an empty one.
                if message.get("code") not in POLITE or "reason" not in message:
                    self._service.metrics.count("disconnected")
                return None
            text = message.get("text")
            if text is None:
                return NOT_TEXT, "messages are text"
            if len(text) > self._most:
                return TOO_BIG, f"messages are {self._service.limits.body_mib:g} MiB at most"
            await self._take(text.encode("utf-8", "replace"))

    async def _take(self, body: bytes) -> None:
        lane: str | None = None
        try:
            kind = decode(body, _KIND)
            lane = kind.stream_id
            if kind.type == "response.create":
                self._create(await decode_body(body, _CREATE), len(body))
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
        running = _Running(service, asked, self._socket.headers, size)
        lane = self._lanes.get(asked.stream_id)
        if lane is None and len(self._lanes) >= limits.max_lanes:
            raise CapacityError(f"a socket has {limits.max_lanes} lanes at most", code="too_many_lanes")
        if lane is not None and len(lane.responses) >= limits.lane_queue:
            raise CapacityError(f"a lane holds {limits.lane_queue} responses at most", code="lane_full")
        self._unstarted.take(size)
        if lane is None:
            lane = self._lanes[asked.stream_id] = _Lane(limits.lane_queue)
            self._tasks.start_soon(self._run_lane, asked.stream_id, lane)
        lane.responses.append(running)
        lane.send.send_nowait(running)

    def _cancel(self, asked: _Cancel) -> None:
        """By id, or all of a lane."""
        here = [each for lane in self._lanes.values() for each in lane.responses]
        if asked.response_id is not None:
            here = [each for each in here if each.events.id == asked.response_id]
        else:
            here = [each for each in here if each.stream_id == asked.stream_id]
        if not here:
            raise UserError("there is no such response in progress", field="response_id")
        for each in here:
            each.cancel()

    async def _run_lane(self, name: str | None, lane: _Lane) -> None:
        """One response after another; an empty lane ceases to be."""
        while lane.responses:
            running = await lane.receive.receive()
            try:
                await self._respond(running)
            except StepwellError as error:
                await self._say_error(error, name)
            except (OSError, WebSocketDisconnect):
                await anyio.sleep_forever()  # the client is gone; the reader hears how, and ends everything
            finally:
                lane.responses.remove(running)
                self._begun(running)
                if running.generation is not None:
                    running.generation.close()
        del self._lanes[name]
        self._lane_over.ring()
        lane.send.close()
        lane.receive.close()

    async def _respond(self, running: _Running) -> None:
        service, events = self._service, running.events
        with service.stopping.given_up():
            prompt = await service.prompts.chat(running.messages, running.arguments, "input")
            keys = await service.keys([prompt], running.wants.standing.tenant)
        generation = running.generation = service.start([prompt], running.wants, keys)
        self._begun(running)
        generation.most_untaken, generation.overflow = service.limits.buffer_kib << 10, self._drop
        if events.cancelled:
            generation.cancel()
        await generation.accepted()
        await self._say(events.accepted(generation))
        while True:
            await self._say(events.news(generation))
            if events.over:
                return
            await generation.news()

    def _begun(self, running: _Running) -> None:
        """It began, or never will.  Harmless the second time."""
        self._unstarted.give(running.size)
        running.size, running.messages, running.arguments = 0, [], {}

    def _drop(self) -> None:
        """It takes too little: with more waiting than is allowed, the socket ends."""
        self._service.metrics.count("slow_client")
        self._tasks.cancel_scope.cancel()

    # ------------------------------------------------------------------------------------------- out

    async def _say(self, events: Iterable[dict[str, Any]]) -> None:
        """Whole, whatever other lanes say.  A client that takes nothing for too long loses the socket."""
        async with self._sending:
            for event in events:
                self._watch.sending()
                await self._socket.send({"type": "websocket.send", "text": _encode(event).decode()})
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
        await self._say([event])
