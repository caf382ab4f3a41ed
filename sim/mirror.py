"""A backend's idea of the batch, kept by applying launches: which requests decode, and how much KV they read.

Costs what changes: a step of the unchanged decode group is O(1), whatever its size.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from stepwell.core.instructions import Launch
from stepwell.core.protocols import BatchShape
from stepwell.core.types import FOREVER, RequestId


class BatchMirror:
    """Knows every request's true output length (``length_of``), which the scheduler never learns."""

    __slots__ = ("_context", "_end_ticks", "_ends", "_kv_tokens", "_length_of", "_made", "_members", "_ticks", "shape")

    def __init__(self, length_of: Callable[[RequestId], int]) -> None:
        self._length_of = length_of
        self._ticks = 0
        self._kv_tokens = 0
        self._members: dict[RequestId, tuple[int, int]] = {}
        """Of a member: its context and its output tokens, both less ``ticks`` at the time it joined."""
        self._context: dict[RequestId, int] = {}
        self._made: dict[RequestId, int] = {}
        """Output tokens of requests outside the group."""
        self._end_ticks: dict[RequestId, int] = {}
        self._ends: list[tuple[int, RequestId]] = []
        self.shape = BatchShape()
        """The shape of the step applied last."""

    def apply(self, launch: Launch) -> list[RequestId]:
        """Execute ``launch`` in thought.  Returns the requests that produced their end token, in order of id."""
        for id in launch.left:
            self._leave(id)
        for id in launch.joined:
            self._join(id)
        shape = BatchShape()
        ended: list[RequestId] = []
        if launch.decode:
            shape.decode_requests = len(self._members)
            shape.kv_tokens = self._kv_tokens
            ended = self._advance(1)
        for id, start, tokens, samples in launch.slices:
            shape.prefill_tokens += tokens
            shape.prefill_requests += 1
            shape.kv_tokens += start
            if samples:
                self._context[id] = start + tokens
                made = self._made[id] = self._made.get(id, 0) + 1
                if made >= self._length_of(id):
                    ended.append(id)
        if launch.swap_out or launch.swap_in:
            shape.swap_pages = sum([len(pages) for _, pages, _ in (*launch.swap_out, *launch.swap_in)])
        self.shape = shape
        ended.sort()
        return ended

    def quiet_ticks(self) -> int:
        """Further steps of the unchanged group up to and including the first that ends a member."""
        ends = self._ends
        while ends:
            tick, id = ends[0]
            if self._end_ticks.get(id) == tick:
                return tick - self._ticks
            heappop(ends)
        return FOREVER

    def repeat(self, steps: int) -> list[RequestId]:
        """The group runs ``steps`` more steps; returns those who end in the last of them (none ends before)."""
        ended = self._advance(steps)
        ended.sort()
        return ended

    def release(self, id: RequestId) -> None:
        """The request ended.  If it is in the group, the next launch says that it left."""
        self._end_ticks.pop(id, None)
        self._made.pop(id, None)
        self._context.pop(id, None)

    def reset(self) -> None:
        """A step failed: nothing is on the device any more.  Output tokens made before are kept."""
        for id in list(self._members):
            self._leave(id)

    def _advance(self, steps: int) -> list[RequestId]:
        ticks = self._ticks = self._ticks + steps
        self._kv_tokens += steps * len(self._members)
        ended: list[RequestId] = []
        ends = self._ends
        while ends and ends[0][0] <= ticks:
            tick, id = heappop(ends)
            if self._end_ticks.get(id) == tick:
                del self._end_ticks[id]
                ended.append(id)
        return ended

    def _join(self, id: RequestId) -> None:
        context = self._context.pop(id, None)
        if context is None:
            # It ended (its client left) between sampling and joining; the next launch takes it out again.
            return
        made = self._made.pop(id)
        self._members[id] = (context - self._ticks, made - self._ticks)
        self._kv_tokens += context
        tick = self._end_ticks[id] = self._ticks + self._length_of(id) - made
        heappush(self._ends, (tick, id))

    def _leave(self, id: RequestId) -> None:
        member = self._members.pop(id, None)
        if member is None:
            return
        context, made = member
        self._kv_tokens -= context + self._ticks
        if self._end_ticks.pop(id, None) is not None:
            self._made[id] = made + self._ticks
