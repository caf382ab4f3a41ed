"""A waiting line for each tenant; whoever has been served least is next.  The line of ``policies.vtc``."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush, heapreplace
from typing import Any

from stepwell.core.protocols import PolicyEvent, RequestView
from stepwell.core.types import FOREVER, WAITING, RequestId
from stepwell.policies.line import in_line

Service = Callable[[RequestView], int]
"""What a request has been given so far."""


class Tenant:
    """``banked`` is the service (by weight) of its ended requests, and what it was lifted by."""

    __slots__ = ("banked", "heap", "name", "queued", "served", "weight")

    def __init__(self, name: str) -> None:
        self.name = name
        self.weight = 1.0
        self.banked = 0.0
        self.heap: list[tuple[RequestId, RequestView]] = []
        self.queued: dict[RequestId, None] = {}
        self.served: dict[RequestId, RequestView] = {}

    def counter(self, service: Service) -> float:
        """Whoever was sent away before the first token has been given nothing."""
        given = [service(each) for each in self.served.values() if each.state is not WAITING or each.generated > 0]
        return self.banked + sum(given) / self.weight

    def put(self, request: RequestView) -> None:
        if request.id not in self.queued:
            self.queued[request.id] = None
            heappush(self.heap, (request.id, request))

    def head(self) -> RequestView:
        """Its first in line; asked only while somebody is queued."""
        while self.heap[0][0] not in self.queued or not in_line(self.heap[0][1]):
            heappop(self.heap)
        return self.heap[0][1]


class TenantLine:
    """See the module.  Within a tenant the order is that of arrival."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.tenants: dict[str, Tenant] = {}
        self.last_left = ""
        """The tenant that was the last to have nobody left in line."""
        self._order: list[tuple[float, str, Tenant]] = []
        self._taken: list[RequestView] = []

    def tenant(self, name: str) -> Tenant:
        found = self.tenants.get(name)
        if found is None:
            found = self.tenants[name] = Tenant(name)
        return found

    def _of(self, request: RequestView) -> Tenant:
        tenant = self.tenant(request.tenant)
        tenant.weight = request.weight
        return tenant

    def observe(self, event: PolicyEvent) -> None:
        """Take notice of an event; a policy passes every one on."""
        self._put_back()
        request = event.request
        tenant = self._of(request)
        kind = event.kind
        if kind == "arrived":
            if not tenant.queued:
                self._lift(tenant)
            if request.generated > 0:
                tenant.served[request.id] = request  # observed again after its work was dropped
            tenant.put(request)
        elif kind == "preempted" or kind == "swapped":
            tenant.put(request)
        elif kind == "admitted" or kind == "resumed":
            tenant.served[request.id] = request
            tenant.queued.pop(request.id, 0)  # a plan that took it has removed it already
            self._left(tenant)
        elif kind == "finished":
            if tenant.served.pop(request.id, None) and (request.id not in tenant.queued or request.generated > 0):
                tenant.banked += self._service(request) / tenant.weight
            if tenant.queued.pop(request.id, 0) is None:
                self._left(tenant)

    def _lift(self, tenant: Tenant) -> None:
        """Somebody who was away does not come back with credit: up to the least of those in line, or the last to go."""
        least = [each.counter(self._service) for each in self.tenants.values() if each.queued]
        if not least and self.last_left in self.tenants and self.last_left != tenant.name:
            least = [self.tenants[self.last_left].counter(self._service)]
        if least:
            tenant.banked += max(0.0, min(least) - tenant.counter(self._service))

    def _left(self, tenant: Tenant) -> None:
        """Somebody of the tenant's has left the line."""
        if not tenant.queued:
            self.last_left = tenant.name
            if len(self.tenants) > 64:
                self._forget()

    def _forget(self) -> None:
        """Idle tenants that a lift would bring to where all others are anyway."""
        floor = self.tenants[self.last_left].counter(self._service)
        floor = min([each.counter(self._service) for each in self.tenants.values() if each.queued], default=floor)
        idle = [each for each in self.tenants.values() if not (each.queued or each.served) and each.banked <= floor]
        for each in idle:
            if each.name != self.last_left:
                del self.tenants[each.name]

    def _put_back(self) -> None:
        if self._taken:
            for request in self._taken:
                if in_line(request):
                    self._of(request).put(request)
            self._taken.clear()

    def start(self, now_ns: int) -> None:
        """Begin a plan: count, and put back whoever the last plan took but could not place."""
        self._put_back()
        waiting = [each for each in self.tenants.values() if each.queued]
        alone = len(waiting) == 1
        self._order = [(0.0 if alone else each.counter(self._service), each.name, each) for each in waiting]
        heapify(self._order)

    def head(self) -> RequestView | None:
        """The first of the tenant that has been served least; None if nobody waits."""
        return self._order[0][2].head() if self._order else None

    def take(self) -> None:
        """Remove the head; its prompt counts at once."""
        counter, name, tenant = self._order[0]
        id, request = heappop(tenant.heap)
        del tenant.queued[id]
        self._taken.append(request)
        if not tenant.queued:
            heappop(self._order)
            return
        if request.state is WAITING and request.generated == 0:
            counter += self._service(request) / tenant.weight
        heapreplace(self._order, (counter, name, tenant))

    def steps_in_order(self, growth: int) -> int:
        """Further steps for which the head stays the head, if a running request is given ``growth`` in each."""
        if len(self._order) < 2:
            return FOREVER
        first = self._order[0]
        room = min(each[0] for each in self._order[1:3]) - first[0]
        most = len(first[2].served) * growth / first[2].weight
        return max(0, int(room / most) - 1) if most else FOREVER

    def next_change_ns(self) -> int:
        """Time alone changes nothing."""
        return 0

    def dump(self) -> dict[str, object]:
        """As ``protocols.Remembering``: service outlives the requests that were given it."""
        tenants = [[each.name, each.banked] for each in self.tenants.values()]
        return {"tenants": tenants, "last_left": self.last_left}

    def load(self, data: Any) -> None:
        for name, banked in data["tenants"]:
            self.tenant(name).banked = banked
        self.last_left = data["last_left"]
