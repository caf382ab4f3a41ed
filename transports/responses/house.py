"""Where responses are made, found, continued and looked after, for every transport."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from stepwell.core.config_responses import ResponsesConfig
from stepwell.core.types import NS_PER_MS, RequestId
from stepwell.transports.errors import RequestError
from stepwell.transports.http.requests import MAX_MESSAGES
from stepwell.transports.responses.create import Order
from stepwell.transports.responses.items import STORED, InputItem
from stepwell.transports.responses.live import Live
from stepwell.transports.responses.shelf import Shelf
from stepwell.transports.service import Service

SWEEP_S = 60.0


class Responses:
    """Of one service."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.limits: ResponsesConfig = service.config.responses
        self.shelf = Shelf(self.limits, service.clock.now_ns)
        self.sockets: dict[str, int] = {}
        """Open ones, by tenant."""
        self._waiting: dict[Live, int] = {}
        """With the position that each was told."""
        self._timers: dict[str, asyncio.TimerHandle] = {}

    # ------------------------------------------------------------------------------------------- clients

    def tenant(self, headers: Mapping[str, str]) -> str:
        """Whose request it is."""
        return self.service.wire.tenant(headers)

    def live(self, order: Order) -> Live:
        """A response to be begun."""
        live = Live(self.service, order, self, self.limits.events_kib << 10)
        live.hold_s = self.limits.hold_s
        return live

    def find(self, tenant: str, id: str) -> Live:
        """Raises ``RequestError`` if that tenant has none of that name."""
        live = self.shelf.find(tenant, id)
        if live is None:
            raise RequestError(
                f"there is no response {id[:100]!r}, or not any more", field="id", status=404, code="response_not_found"
            )
        return live

    def delete(self, live: Live) -> None:
        """It is not to be found any more; if it is on its way, it ends."""
        self.shelf.remove(live)
        live.cancel()

    def conversation(self, order: Order) -> list[InputItem]:
        """What was said before, from the first response on."""
        turns: list[list[InputItem]] = []
        id = order.previous
        while id is not None:
            live = self.shelf.find(order.tenant, id)
            if live is None or not live.over:
                why = "is not over yet" if live is not None else "is not there, or not any more"
                raise RequestError(
                    f"response {id[:100]!r} {why}", field="previous_response_id", code="previous_response_not_found"
                )
            self.shelf.touch(live)
            output = msgspec.convert([item.shown() for item in live.answer.items], list[InputItem])
            turns.append([*STORED.decode(live.input), *output])
            id = live.previous
            if sum(map(len, turns)) > MAX_MESSAGES:
                raise RequestError(f"has more than {MAX_MESSAGES} items", field="previous_response_id")
        return [item for turn in reversed(turns) for item in turn]

    def input_items(self, live: Live) -> list[dict[str, Any]]:
        """What it was made from, in order: all that was said before, as far as it is still there, and its own input."""
        turns: list[list[dict[str, Any]]] = []
        one: Live | None = live
        while one is not None:
            output = [item.shown() for item in one.answer.items] if one is not live else []
            turns.append([*msgspec.json.decode(one.input), *output])
            one = self.shelf.find(one.tenant, one.previous) if one.previous is not None else None
        return [item for turn in reversed(turns) for item in turn]

    # ------------------------------------------------------------------------------------------- the keeper of them

    def began(self, live: Live) -> None:
        """It is in line, or on its way already."""
        if live.order.store:
            self.shelf.put(live)
        generation = live.generation
        if generation is not None and not generation.choices[0].admitted:
            self._waiting[live] = 0
            self._tell_places([live], {live.request: len(self.service.scheduler.state.waiting)})
            self._again("places", self.limits.queue_update_s, self._tell_all)

    def admitted(self, live: Live) -> None:
        """It waits no more."""
        self._waiting.pop(live, None)

    def ended(self, live: Live) -> None:
        """It is over."""
        if live.order.store:
            self.shelf.ended(live)
            self._again("sweep", SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        self.shelf.expire()
        if self.shelf.count:
            self._again("sweep", SWEEP_S, self._sweep)

    def _tell_all(self) -> None:
        if self._waiting:
            line = self.service.scheduler.state.waiting
            self._tell_places(list(self._waiting), {id: place for place, id in enumerate(line, 1)})
            self._again("places", self.limits.queue_update_s, self._tell_all)

    def _tell_places(self, lives: list[Live], places: Mapping[RequestId, int]) -> None:
        """Positions in the order of arrival: what the policy will do nobody knows."""
        each_ns = self.service.wait_ns // max(self.service.metrics.waiting, 1)
        for live in lives:
            place = places.get(live.request, 0)
            if place and place != self._waiting.get(live):
                self._waiting[live] = place
                live.queued(place, place * each_ns // NS_PER_MS)

    def _again(self, name: str, after_s: float, work: Any) -> None:
        """Once, however often it is asked for."""
        timer = self._timers.get(name)
        if timer is None or timer.when() <= asyncio.get_running_loop().time():
            self._timers[name] = asyncio.get_running_loop().call_later(after_s, work)
