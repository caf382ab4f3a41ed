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
    Those that ``may_age`` says no to never do.
    """

    def __init__(self, rank: Rank, age_ns: int, may_age: Callable[[RequestView], bool] = lambda request: True) -> None:
        self.age_ns = age_ns
        self.line = OrderedLine(self.rank, self.ages_at)
        self._rank = rank
        self._may_age = may_age
        self._live: list[tuple[RequestId, RequestView]] = []
        self.now_ns = 0

    def elder(self) -> RequestView | None:
        """The oldest live request that may age."""
        live = self._live
        while live:
            request = live[0][1]
            if request.state is not FINISHED:
                return request
            heappop(live)
        return None

    def rank(self, request: RequestView, now_ns: int) -> Key:
        if now_ns - request.arrival_ns >= self.age_ns and request is self.elder():
            return (0, request.id)
        return self._rank(request, now_ns)

    def ages_at(self, request: RequestView) -> int | None:
        """When ``rank`` changes by time alone; None if it does not."""
        return request.arrival_ns + self.age_ns if request is self.elder() else None

    def observe(self, event: PolicyEvent) -> None:
        """Take notice of an event; a policy passes every one on."""
        self.now_ns = event.now_ns
        may_age = self._may_age(event.request)
        if may_age and event.kind == "arrived":
            heappush(self._live, (event.request.id, event.request))
        self.line.observe(event)
        if may_age and event.kind == "finished":
            elder = self.elder()
            if elder is not None:
                self.line.refresh(elder, event.now_ns)

    def reorder(self) -> None:
        """Something has changed the ranks of all who may age."""
        for _, request in sorted(self._live, key=lambda each: each[0]):
            self.line.refresh(request, self.now_ns)
