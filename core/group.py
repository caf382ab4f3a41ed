"""The decode group: requests that advance together, one token a step.

The cost of a step must follow what changes, not how many requests run.  So the group keeps one counter, ``launched``;
each member stores only its offset to it (``base``), and two calendars say at which count something happens to whom:

- ``full``: the member's page table is full, so it needs a page before the next launch (members whose tables fill at
  the same count form a ``Phase``, which moves on as a whole when they got their page);
- ``ends``: the launch that reaches this count computes the member's last allowed token.

Everything else about a member (computed positions, output length) is derived when somebody asks.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

from stepwell.core.request import NO_PHASE, STANDING, Phase, Request, StepCounter
from stepwell.core.types import FOREVER, RequestId, StepId

_NOBODY: Final[dict[RequestId, Request]] = {}
_NO_IDS: Final[list[RequestId]] = []
_NO_REQUESTS: Final[list[Request]] = []
# Of most steps; nobody writes to them.


class DecodeGroup(StepCounter):
    """See the module.  ``joined`` and ``left`` collect changes until a launch tells the backend about them."""

    __slots__ = ("bases", "end_counts", "ends", "full", "joined", "left", "members", "page_size")

    def __init__(self, page_size: int) -> None:
        super().__init__()
        self.page_size = page_size
        self.members: dict[RequestId, Request] = {}
        self.bases = 0
        """The sum of the members' offsets."""
        self.full: dict[int, Phase] = {}
        self.ends: dict[int, dict[RequestId, Request]] = {}
        self.end_counts: list[int] = []
        self.joined: dict[RequestId, Request] = {}
        self.left: list[RequestId] = []

    def join(self, request: Request) -> None:
        """Take in a request with one pending token that may still produce at least one more."""
        launched = self.launched
        base = request.base = request.base - launched
        self.bases += base
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
        full = request.capacity - base
        phase = self.full.get(full)
        if phase is None:
            phase = self.full[full] = Phase(full)
        phase.members[request.id] = request
        request.phase = phase

    def leave(self, request: Request) -> None:
        """Let a member go, its numbers made its own again."""
        id = request.id
        del self.members[id]
        phase = request.phase
        del phase.members[id]
        if not phase.members:
            del self.full[phase.full_at]
        due = self.ends[request.end_at]
        del due[id]
        if not due:
            del self.ends[request.end_at]
        launched = self.launched
        request.capacity = request.base + phase.full_at
        self.bases -= request.base
        request.base += launched
        request.counter = STANDING
        request.left_at = launched
        request.phase = NO_PHASE
        request.end_at = -1
        if request.shown:
            request.shown = False
            request.last_step = self.last_step
            self.left.append(id)
        else:
            del self.joined[id]

    def known(self) -> int:
        """Prompt and output tokens of all members together: each has one that is not computed."""
        return self.bases + len(self.members) * (self.launched + 1)

    def growing(self) -> dict[RequestId, Request]:
        """Members that need a page before the next launch."""
        phase = self.full.get(self.launched)
        return phase.members if phase is not None else _NOBODY

    def grow(self, launched: int) -> list[RequestId]:
        """Who needs a page for the launch after the ``launched``-th; from here on they are taken to have it."""
        phase = self.full.pop(launched, None)
        if phase is None:
            return []
        ids = list(phase.members)
        full_at = launched + self.page_size
        later = self.full.get(full_at)
        if later is None:
            phase.full_at = full_at
            self.full[full_at] = phase
        else:
            for request in phase.members.values():
                request.phase = later
            later.members.update(phase.members)
        return ids

    def changes(self, runs: bool) -> tuple[list[RequestId], list[RequestId]]:
        """Who left since the last call and, if the group ``runs``, who joined; from here on the backend knows them."""
        joined, left = _NO_IDS, self.left
        if runs and self.joined:
            joined = list(self.joined)
            for request in self.joined.values():
                request.shown = True
            self.joined.clear()
        if not left:
            return joined, _NO_IDS
        self.left = []
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
            return _NO_REQUESTS
        finishing = list(due.values())
        for request in finishing:
            self.leave(request)
        return finishing

    def next_end(self) -> int:
        """The earliest count at which a member's last token is computed; FOREVER in an empty group."""
        counts = self.end_counts
        while counts:
            if counts[0] in self.ends:
                return counts[0]
            heappop(counts)
        return FOREVER
