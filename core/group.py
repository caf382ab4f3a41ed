"""The decode group: requests that advance together, one token a step.

The cost of a step must follow what changes, not how many requests run.  So the group keeps one counter, ``launched``;
each member stores only its offset to it (``base``), and two calendars say at which count something happens to whom:

- ``full``: the member's page table is full, so it needs a page before the next launch;
- ``ends``: the launch that reaches this count computes the member's last allowed token.

Everything else about a member (computed positions, output length) is derived when somebody asks.
"""

from __future__ import annotations

from heapq import heappop, heappush

from stepwell.core.request import STANDING, Request, StepCounter
from stepwell.core.types import FOREVER, RequestId, StepId

Calendar = dict[int, dict[RequestId, Request]]


class DecodeGroup(StepCounter):
    """See the module.  ``joined`` and ``left`` collect changes until a launch tells the backend about them."""

    __slots__ = ("end_counts", "ends", "full", "joined", "left", "members", "page_size")

    def __init__(self, page_size: int) -> None:
        super().__init__()
        self.page_size = page_size
        self.members: dict[RequestId, Request] = {}
        self.full: Calendar = {}
        self.ends: Calendar = {}
        self.end_counts: list[int] = []
        self.joined: dict[RequestId, Request] = {}
        self.left: list[RequestId] = []

    def join(self, request: Request) -> None:
        """Take in a request with one pending token that may still produce at least one more."""
        launched = self.launched
        base = request.base = request.base - launched
        request.counter = self
        request.joined_at = launched
        request.left_at = FOREVER
        self.members[request.id] = request
        self.joined[request.id] = request
        end = request.end_at = request.limit - base
        due = self.ends.get(end)
        if due is None:
            self.ends[end] = {request.id: request}
            heappush(self.end_counts, end)
        else:
            due[request.id] = request
        full = request.full_at = request.capacity - base
        if full < end:
            due = self.full.get(full)
            if due is None:
                self.full[full] = {request.id: request}
            else:
                due[request.id] = request

    def leave(self, request: Request) -> None:
        """Let a member go, its numbers made its own again."""
        id = request.id
        del self.members[id]
        due = self.full.get(request.full_at)
        if due is not None:
            due.pop(id, None)
        due = self.ends.get(request.end_at)
        if due is not None:
            due.pop(id, None)
        request.capacity = request.base + request.full_at
        request.base += self.launched
        request.counter = STANDING
        request.left_at = self.launched
        request.full_at = request.end_at = -1
        if request.shown:
            request.shown = False
            request.last_step = self.last_step
            self.left.append(id)
        else:
            del self.joined[id]

    def growing(self) -> dict[RequestId, Request] | None:
        """Members that need a page before the next launch; None or empty if nobody does."""
        return self.full.get(self.launched)

    def grown(self) -> None:
        """Every growing member got one page."""
        bucket = self.full.pop(self.launched)
        full_at = self.launched + self.page_size
        for request in bucket.values():
            request.full_at = full_at
        later = self.full.get(full_at)
        if later is None:
            self.full[full_at] = bucket
        else:
            later.update(bucket)

    def changes(self) -> tuple[list[RequestId], list[RequestId]]:
        """Who joined and who left since the last call; from here on the backend knows them."""
        joined = list(self.joined)
        for request in self.joined.values():
            request.shown = True
        self.joined.clear()
        left, self.left = self.left, []
        return joined, left

    def forget_changes(self) -> None:
        """The backend lost its device state, and with it the whole group: nothing is left to tell it."""
        self.joined.clear()
        self.left.clear()

    def tick(self, step: StepId) -> list[Request]:
        """The group is launched as part of ``step``.  Returns those whose last token is in it; they leave."""
        self.launched = launched = self.launched + 1
        self.last_step = step
        due = self.ends.get(launched)
        if due is None:
            return []
        finishing = list(due.values())
        for request in finishing:
            self.leave(request)
        del self.ends[launched]
        return finishing

    def next_end(self) -> int:
        """The earliest count at which a member's last token is computed; FOREVER in an empty group."""
        counts = self.end_counts
        while counts:
            due = self.ends.get(counts[0])
            if due:
                return counts[0]
            if due is not None:
                del self.ends[counts[0]]
            heappop(counts)
        return FOREVER
