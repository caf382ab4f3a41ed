"""Aging: the oldest live request comes first of all once it has reached an age, so that nobody starves."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from stepwell.core.protocols import PolicyEvent, RequestView
from stepwell.core.types import FINISHED, RequestId
from stepwell.policies.line import Key, OrderedLine, Rank


class Aging:
    """A line in the order of ``rank`` but for the aged elder, who ranks 0: no worse than anybody.

    Only the oldest ages, so the order is left to ``rank`` but for one seat; when the elder ends, the next may age.
    A class with an ``aging_ns`` of its own has its own elder, and so one more seat.  Those that ``may_age`` says no to
    never age.
    """

    def __init__(self, rank: Rank, age_ns: int, may_age: Callable[[RequestView], bool] = lambda request: True) -> None:
        self.age_ns = age_ns
        self.line = OrderedLine(self.rank, self.ages_at)
        self._rank = rank
        self._may_age = may_age
        self._live: dict[str, list[tuple[RequestId, RequestView]]] = {}
        """By ``_group``."""
        self.now_ns = 0

    def elder(self, request: RequestView) -> RequestView | None:
        """The oldest live request that ages with ``request``."""
        live = self._live.get(_group(request), ())
        while live:
            oldest = live[0][1]
            if oldest.state is not FINISHED:
                return oldest
            heappop(live)
        return None

    def aged(self, now_ns: int) -> set[RequestId]:
        """Who ranks 0."""
        found: set[RequestId] = set()
        for live in self._live.values():
            elder = self.elder(live[0][1]) if live else None
            if elder is not None and now_ns >= self._of_age_ns(elder):
                found.add(elder.id)
        return found

    def rank(self, request: RequestView, now_ns: int) -> Key:
        if now_ns >= self._of_age_ns(request) and request is self.elder(request):
            return (0, request.id)
        return self._rank(request, now_ns)

    def ages_at(self, request: RequestView) -> int | None:
        """When ``rank`` changes by time alone; None if it does not."""
        return self._of_age_ns(request) if request is self.elder(request) else None

    def _of_age_ns(self, request: RequestView) -> int:
        return request.arrival_ns + (request.aging_ns or self.age_ns)

    def observe(self, event: PolicyEvent) -> None:
        """Take notice of an event; a policy passes every one on."""
        self.now_ns = event.now_ns
        request = event.request
        may_age = self._may_age(request)
        if may_age and event.kind == "arrived":
            heappush(self._live.setdefault(_group(request), []), (request.id, request))
        self.line.observe(event)
        if may_age and event.kind == "finished":
            elder = self.elder(request)
            if elder is not None:
                self.line.refresh(elder, event.now_ns)

    def reorder(self) -> None:
        """Something has changed the ranks of all who may age."""
        live = [each for group in self._live.values() for each in group]
        for _, request in sorted(live, key=lambda each: each[0]):
            self.line.refresh(request, self.now_ns)


def _group(request: RequestView) -> str:
    """Those who age together: a class with an age of its own, or all others."""
    return request.klass if request.aging_ns else ""
