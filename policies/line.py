"""Lines of requests that wait for the device, and what is asked of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from itertools import chain, islice
from typing import Protocol

from stepwell.core.protocols import PolicyEvent, RequestView, SchedulerView
from stepwell.core.types import SWAPPED, SWAPPING_OUT, WAITING, RequestId

Key = tuple[int, int]
"""Orders requests: smaller is served first."""

Rank = Callable[[RequestView, int], Key]
"""The key of a request at a time (ns)."""


def by_arrival(request: RequestView, now_ns: int) -> Key:
    """First come, first served."""
    return (0, request.id)


def in_line(request: RequestView) -> bool:
    """Whether it waits for the device: never admitted, preempted, or swapped."""
    state = request.state
    return state is WAITING or state is SWAPPED or state is SWAPPING_OUT


class Line(Protocol):
    """Who waits, in an order; what ``pack`` admits from.  ``OrderedLine`` says what each method does."""

    def start(self, now_ns: int) -> None: ...
    def head(self) -> RequestView | None: ...
    def take(self) -> None: ...
    def next_change_ns(self) -> int: ...


class OrderedLine:
    """Waiting and swapped requests in the order of ``rank``; O(log n) a change.

    Fed by ``observe``.  Entries of requests that left are dropped when they come up, and swept once they are the
    majority.  ``ages_at`` says when the passing of time alone changes a request's key (None: never).
    """

    def __init__(self, rank: Rank, ages_at: Callable[[RequestView], int | None] | None = None) -> None:
        self._rank = rank
        self._ages_at = ages_at
        self._heap: list[tuple[Key, RequestId, RequestView]] = []
        self._keys: dict[RequestId, Key] = {}
        self._aging: list[tuple[int, RequestId, RequestView]] = []
        self._taken: list[RequestView] = []

    def observe(self, event: PolicyEvent) -> None:
        """Take notice of an event; a policy passes every one on."""
        kind = event.kind
        if kind == "arrived" or kind == "preempted" or kind == "swapped":
            self._put(event.request, event.now_ns)
        elif kind == "finished" and self._keys and event.request.id in self._keys:
            del self._keys[event.request.id]
            if len(self._heap) > 2 * len(self._keys) + 64:
                self._sweep()

    def _sweep(self) -> None:
        self._heap = [entry for entry in self._heap if self._keys.get(entry[1]) == entry[0]]
        heapify(self._heap)
        self._aging = [entry for entry in self._aging if entry[1] in self._keys]
        heapify(self._aging)

    def _put(self, request: RequestView, now_ns: int) -> None:
        key = self._rank(request, now_ns)
        id = request.id
        self._keys[id] = key
        heappush(self._heap, (key, id, request))
        if self._ages_at is not None:
            at_ns = self._ages_at(request)
            if at_ns is not None and at_ns > now_ns:
                heappush(self._aging, (at_ns, request.id, request))

    def refresh(self, request: RequestView, now_ns: int) -> None:
        """Something else than time changed the key of ``request``; harmless if it is not in line."""
        if request.id in self._keys and in_line(request):
            self._put(request, now_ns)

    def reorder(self, now_ns: int) -> None:
        """Something else than time changed the keys of all, as what a policy ``load``s does; O(n log n)."""
        for request in [request for key, id, request in self._heap if self._keys.get(id) == key]:
            self.refresh(request, now_ns)

    def start(self, now_ns: int) -> None:
        """Begin a plan: age, and put back whoever the last plan took but could not place."""
        if self._taken:
            for request in self._taken:
                if request.id not in self._keys and in_line(request):
                    self._put(request, now_ns)
            self._taken.clear()
        aging = self._aging
        while aging and aging[0][0] <= now_ns:
            _, id, request = heappop(aging)
            if id in self._keys:
                self._put(request, now_ns)

    def head(self) -> RequestView | None:
        """The first in line; None if nobody waits."""
        heap, keys = self._heap, self._keys
        while heap:
            key, id, request = heap[0]
            if keys.get(id) == key and (request.state is WAITING or in_line(request)):
                return request
            heappop(heap)
        return None

    def take(self) -> None:
        """Remove the head that was just given, to place it by the plan being made."""
        _, id, request = heappop(self._heap)
        del self._keys[id]
        self._taken.append(request)

    def drop(self) -> None:
        """Remove the head that was just given, for good: the plan being made rejects it."""
        del self._keys[heappop(self._heap)[1]]

    def next_change_ns(self) -> int:
        """When time alone changes the order next; 0 if it will not."""
        return self._aging[0][0] if self._aging else 0


def first_in_line(view: SchedulerView, most: int) -> list[RequestView]:
    """Up to ``most`` that wait, swapped ones first, each kind in the order in which it came to wait."""
    return list(islice(chain(view.swapped.values(), view.waiting.values()), most))


class ListedLine:
    """Requests in the order in which they are given, for one plan: where the order is made anew each time.

    Such an order may change while a plan repeats, so a policy asks to be asked again: ``repeat`` 0 for who is blocked.
    """

    def __init__(self, requests: Iterable[RequestView]) -> None:
        self._left = list(requests)
        self._left.reverse()

    def start(self, now_ns: int) -> None: ...

    def head(self) -> RequestView | None:
        return self._left[-1] if self._left else None

    def take(self) -> None:
        self._left.pop()

    def next_change_ns(self) -> int:
        return 0
