"""Responses that can be asked for again: bounded in number, bytes and time, each its tenant's alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from stepwell.core.config_responses import ResponsesConfig
from stepwell.core.types import NS_PER_S
from stepwell.transports.responses.answer import Json
from stepwell.transports.responses.live import Live

COST = 3 << 10
"""Bytes of a response beside its texts, about."""
ROW = 512
"""Bytes of a token's log-probability, and of each of the best beside it, about."""


class _Place(msgspec.Struct):
    live: Live
    size: int = 0
    until_ns: int = 0
    """0: it is on its way, and stays."""


class _Tenant:
    """Those of one, the one that goes first in front."""

    def __init__(self) -> None:
        self.running: dict[str, _Place] = {}
        self.ended: dict[str, _Place] = {}
        self.size = 0


class Shelf:
    """What is on its way is not counted: answers in progress are bounded elsewhere."""

    def __init__(self, limits: ResponsesConfig, now_ns: Callable[[], int]) -> None:
        self.count = 0
        """Of those that ended."""
        self.size = 0
        self._limits = limits
        self._most = int(limits.keep_mib * (1 << 20))
        self._keep_ns = int(limits.keep_hours * 3600 * NS_PER_S)
        self._now_ns = now_ns
        self._tenants: dict[str, _Tenant] = {}

    def put(self, live: Live) -> None:
        """It is on its way."""
        self._tenants.setdefault(live.tenant, _Tenant()).running[live.id] = _Place(live)

    def find(self, tenant: str, id: str) -> Live | None:
        """None if there is none of that tenant, or no more."""
        self.expire(tenant)
        own = self._tenants.get(tenant)
        place = own and (own.running.get(id) or own.ended.get(id))
        return place.live if place else None

    def touch(self, tenant: str, id: str) -> None:
        """Something goes on from it: its time begins again."""
        own = self._tenants.get(tenant)
        place = own.ended.pop(id, None) if own is not None else None
        if own is not None and place is not None:
            place.until_ns = self._now_ns() + self._keep_ns
            own.ended[id] = place

    def ended(self, live: Live) -> bool:
        """It is over, and counts from now on; False: it was deleted meanwhile."""
        own = self._tenants.get(live.tenant)
        place = own.running.pop(live.id, None) if own is not None else None
        if own is None or place is None:
            return False
        place.size, place.until_ns = size_of(live), self._now_ns() + self._keep_ns
        own.ended[live.id] = place
        own.size += place.size
        self.size += place.size
        self.count += 1
        self.expire(live.tenant)
        while self.count and (self.count > self._limits.keep or self.size > self._most):
            name = max(self._tenants, key=lambda each: (self._tenants[each].size, len(self._tenants[each].ended)))
            self._drop(self._tenants[name], next(iter(self._tenants[name].ended)))
            self._forget(name)
        return True

    def remove(self, live: Live) -> None:
        """Its tenant wants it gone.  Harmless if it is."""
        own = self._tenants.get(live.tenant)
        if own is None or not (live.id in own.running or live.id in own.ended):
            return
        if own.running.pop(live.id, None) is None:
            self._drop(own, live.id)
        self._forget(live.tenant)

    def expire(self, tenant: str = "") -> None:
        """Drop what is too old: of one tenant, or of all."""
        now_ns = self._now_ns()
        for name in [tenant] if tenant else list(self._tenants):
            own = self._tenants.get(name)
            while own is not None and own.ended:
                id, place = next(iter(own.ended.items()))
                if place.until_ns > now_ns:
                    break
                self._drop(own, id)
            if own is not None:
                self._forget(name)

    def _drop(self, own: _Tenant, id: str) -> None:
        place = own.ended.pop(id)
        own.size -= place.size
        self.size -= place.size
        self.count -= 1

    def _forget(self, tenant: str) -> None:
        own = self._tenants[tenant]
        if not own.running and not own.ended:
            del self._tenants[tenant]


def size_of(live: Live) -> int:
    """Bytes that it takes, about."""
    answer = live.answer
    items = sum(len(item.text) + _rows(item.logprobs) for item in answer.items)
    return COST + len(live.input) + live.told_size + answer.log.size + items


def _rows(logprobs: Sequence[Json]) -> int:
    return sum(ROW * (1 + len(row["top_logprobs"])) for row in logprobs)
