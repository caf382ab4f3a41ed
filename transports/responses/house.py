"""Where responses are made, found, continued and looked after, for every transport."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from itertools import islice
from typing import Any

import msgspec

from stepwell.core.config_responses import ResponsesConfig
from stepwell.core.types import NS_PER_MS
from stepwell.transports.errors import RequestError
from stepwell.transports.http.requests import MAX_MESSAGES
from stepwell.transports.responses.answer import Json
from stepwell.transports.responses.archive import Archive, Kept
from stepwell.transports.responses.create import Order
from stepwell.transports.responses.items import STORED, InputItem
from stepwell.transports.responses.live import Live
from stepwell.transports.responses.shelf import Shelf
from stepwell.transports.service import Service

SWEEP_S = 60.0
TELL_S, MOST_TOLD = 0.025, 16
"""Places in line are told to so many at once: thousands that wait would hold up those that do not."""
Found = Live | Kept
"""With its events if it is in memory."""


class _Wait(msgspec.Struct):
    """The place that a response was told, and when it may be told another (the loop's time)."""

    place: int = 0
    due: float = 0.0


class Responses:
    """Of one service."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.limits: ResponsesConfig = service.config.responses
        self.shelf = Shelf(self.limits, service.clock.now_ns)
        self._archive = Archive(service.store, self.limits) if service.store is not None else None
        self.sockets: dict[str, int] = {}
        """Open ones, by tenant."""
        self._waiting: dict[Live, _Wait] = {}
        """Who was told longest ago comes first."""
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

    async def find(self, tenant: str, id: str) -> Found:
        """Raises ``RequestError`` if that tenant has none of that name."""
        found = await self._look(tenant, id)
        if found is None:
            raise RequestError(
                f"there is no response {id[:100]!r}, or not any more", field="id", status=404, code="response_not_found"
            )
        return found

    async def _look(self, tenant: str, id: str) -> Found | None:
        live = self.shelf.find(tenant, id)
        if live is not None or self._archive is None:
            return live
        return await self._archive.find(tenant, id)

    async def delete(self, found: Found) -> None:
        """It is not to be found any more; if it is on its way, it ends."""
        if isinstance(found, Live):
            self.shelf.remove(found)
            found.cancel()
        if self._archive is not None:
            await self._archive.remove(found.id)

    async def noted(self, live: Live) -> None:
        """Before it is told of: a response that needs no connection is found after a crash, too."""
        if self._archive is not None and live.order.background and not live.over:
            await self._archive.note(_kept(live))

    async def conversation(self, order: Order) -> list[InputItem]:
        """What was said before, from the first response on."""
        turns: list[list[InputItem]] = []
        id = order.previous
        while id is not None:
            found = await self._look(order.tenant, id)
            if found is None or not found.over:
                why = "is not over yet" if found is not None else "is not there, or not any more"
                raise RequestError(
                    f"response {id[:100]!r} {why}", field="previous_response_id", code="previous_response_not_found"
                )
            self._touch(found)
            output = msgspec.convert(found.response()["output"], list[InputItem])
            turns.append([*STORED.decode(found.input), *output])
            id = found.previous
            if sum(map(len, turns)) > MAX_MESSAGES:
                raise RequestError(f"has more than {MAX_MESSAGES} items", field="previous_response_id")
        return [item for turn in reversed(turns) for item in turn]

    def _touch(self, found: Found) -> None:
        self.shelf.touch(found.tenant, found.id)
        if self._archive is not None:
            self._archive.touch(found.id)

    async def input_items(self, found: Found) -> list[Json]:
        """What it was made from, in order: all that was said before, as far as it is still there, and its own input."""
        turns: list[list[Json]] = []
        one: Found | None = found
        while one is not None and sum(map(len, turns)) <= MAX_MESSAGES:
            output = one.response()["output"] if one is not found else []
            turns.append([*msgspec.json.decode(one.input), *output])
            one = await self._look(one.tenant, one.previous) if one.previous is not None else None
        return [item for turn in reversed(turns) for item in turn]

    # ------------------------------------------------------------------------------------------- the keeper of them

    def began(self, live: Live) -> None:
        """It is in line, or on its way already."""
        if live.order.store:
            self.shelf.put(live)
        generation = live.generation
        if generation is not None and not generation.choices[0].admitted:
            wait = _Wait()
            self._tell(live, wait, len(self.service.scheduler.state.waiting))
            if live.light:
                self._waiting[live] = wait
                self._again("places", TELL_S, self._tell_places)

    def admitted(self, live: Live) -> None:
        """It waits no more."""
        self._waiting.pop(live, None)

    def ended(self, live: Live) -> None:
        """It is over."""
        if live.order.store and self.shelf.ended(live):
            if self._archive is not None:
                self._archive.keep(_kept(live))
            self._again("sweep", SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        self.shelf.expire()
        if self._archive is not None:
            self._archive.sweep()
        if self.shelf.count:
            self._again("sweep", SWEEP_S, self._sweep)

    def _tell_places(self) -> None:
        """Those that were told longest ago, and not so many that others would notice."""
        if not self._waiting:
            return
        now = asyncio.get_running_loop().time()
        due = [live for live, wait in islice(self._waiting.items(), MOST_TOLD) if wait.due <= now]
        places = {id: place for place, id in enumerate(self.service.scheduler.state.waiting, 1)} if due else {}
        for live in due:
            wait = self._waiting.pop(live)
            self._waiting[live] = wait
            self._tell(live, wait, places.get(live.request, 0))
        self._again("places", TELL_S, self._tell_places)

    def _tell(self, live: Live, wait: _Wait, place: int) -> None:
        """Places are in the order of arrival: what the policy will do nobody knows."""
        wait.due = asyncio.get_running_loop().time() + self.limits.queue_update_s
        if place and place != wait.place:
            wait.place = place
            each_ns = self.service.wait_ns // max(self.service.metrics.waiting, 1)
            live.queued(place, place * each_ns // NS_PER_MS)

    def _again(self, name: str, after_s: float, work: Any) -> None:
        """Once, however often it is asked for."""
        timer = self._timers.get(name)
        if timer is None or timer.when() <= asyncio.get_running_loop().time():
            self._timers[name] = asyncio.get_running_loop().call_later(after_s, work)


def _kept(live: Live) -> Kept:
    return Kept(live.id, live.tenant, live.previous, live.answer.response(), live.input)
