"""Arrivals that wait for ends: who arrives when, if requests follow others (``TraceRequest.after``).

Whoever follows nobody arrives at its ``arrival_ns``, all others ``think_ns`` after the last of those they follow has
ended (and not before their ``arrival_ns``).  Ended is finished, cancelled, expired, failed or refused alike: a client
goes on with what it does next, so a policy that refuses many is offered no less than one that refuses none.

When nobody's turn depends on another, none of this is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from stepwell.core.instructions import Finished, Instruction, Rejected
from stepwell.core.types import FOREVER, RequestId
from stepwell.sim.workload.request import TraceRequest


class ClosedLoop:
    """Who has arrived, who will when, and who waits for whom.  ``requests`` are those of a ``Workload``, in its order.

    Ids count upwards in order of arrival, which only the run tells: ``arrived[id - 1]`` is a request, and its place
    in the workload is ``places[id - 1]``.
    """

    def __init__(self, requests: Sequence[TraceRequest]) -> None:
        self.arrived: list[TraceRequest] = []
        self.places: list[int] = []
        self._requests = requests
        self._due = [(each.arrival_ns, place) for place, each in enumerate(requests, 1) if not each.after]
        heapify(self._due)
        self._followers: dict[int, list[int]] = {}
        self._missing: dict[int, int] = {}
        self._ids: dict[int, RequestId] = {}
        for place, each in enumerate(requests, 1):
            if each.after:
                whom = dict.fromkeys(each.after)
                self._missing[place] = len(whom)
                for before in whom:
                    self._followers.setdefault(before, []).append(place)

    @property
    def next_ns(self) -> int:
        """When the next request arrives, as far as is known yet; ``FOREVER`` if that depends on ends to come."""
        return self._due[0][0] if self._due else FOREVER

    def arrive(self, now_ns: int) -> list[tuple[RequestId, TraceRequest]]:
        """Those whose time is ``now_ns``, with their ids; in order of place."""
        due, arrived = self._due, self.arrived
        news = []
        while due and due[0][0] == now_ns:
            _, place = heappop(due)
            request = self._requests[place - 1]
            arrived.append(request)
            self.places.append(place)
            self._ids[place] = len(arrived)
            news.append((len(arrived), request))
        return news

    def id_of(self, place: int) -> RequestId:
        """Of the request at ``place``; 0 if there is none or it has not arrived."""
        return self._ids.get(place, 0)

    def follow(self, now_ns: int, instructions: Sequence[Instruction]) -> None:
        """Take note of who ended at ``now_ns``."""
        for instruction in instructions:
            if isinstance(instruction, Finished | Rejected):
                for place in self._followers.pop(self.places[instruction.request - 1], ()):
                    self._missing[place] -= 1
                    if not self._missing[place]:
                        del self._missing[place]
                        request = self._requests[place - 1]
                        heappush(self._due, (max(now_ns + request.think_ns, request.arrival_ns), place))
