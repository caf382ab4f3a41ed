"""Whether anybody who runs ranks worse than the head of the line: asked before victims are looked for one by one."""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace

from stepwell.core.protocols import PolicyEvent, RequestView
from stepwell.core.types import FINISHED, RequestId
from stepwell.policies.line import Rank, in_line


class Running:
    """Who runs, the worst first; for ranks that never get worse while a request runs.  O(log n) a change."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._heap: list[tuple[int, RequestId, RequestView]] = []
        self._sweep_at = 1024

    def observe(self, event: PolicyEvent) -> None:
        """Take notice of an event; a policy passes every one on."""
        if event.kind == "admitted" or event.kind == "resumed":
            request = event.request
            heappush(self._heap, (-self._rank(request, event.now_ns)[0], -request.id, request))
            if len(self._heap) > self._sweep_at:
                self.reorder(event.now_ns)
                self._sweep_at = 2 * len(self._heap) + 1024

    def reorder(self, now_ns: int) -> None:
        """Rank everybody anew; forget who has left."""
        alive = {id: request for _, id, request in self._heap if not _gone(request)}
        self._heap = [(-self._rank(request, now_ns)[0], id, request) for id, request in alive.items()]
        heapify(self._heap)

    def any_worse(self, head: RequestView | None, now_ns: int) -> bool:
        """Whether somebody would have to give way to ``head``, if need be."""
        return head is not None and self.any_above(self._rank(head, now_ns)[0], now_ns)

    def any_above(self, best: int, now_ns: int) -> bool:
        """Whether somebody is of a class (``rank(...)[0]``) worse than ``best``."""
        heap = self._heap
        while heap and -heap[0][0] > best:
            _, id, request = heap[0]
            if _gone(request):
                heappop(heap)
                continue
            present = self._rank(request, now_ns)[0]
            if present > best:
                return True
            heapreplace(heap, (-present, id, request))
        return False


def _gone(request: RequestView) -> bool:
    return request.state is FINISHED or in_line(request)
