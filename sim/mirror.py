"""A backend's idea of the batch, kept by applying launches: which requests decode, and how much KV they read.

Costs what changes: a step of the unchanged decode group is O(1), whatever its size.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

import msgspec

from stepwell.core import kinds
from stepwell.core.instructions import Launch
from stepwell.core.protocols import BatchShape, CostModel
from stepwell.core.types import FOREVER, BoxedId, RequestId

BoxedSlice = tuple[BoxedId, int, int, bool]


class _Row:
    """A request: ``context`` tokens with KV and ``made`` output tokens, both less ``ticks`` while it is a member.

    ``end_tick`` is the tick at which a member makes its last token; 0 once it has, or if it is no member.
    """

    __slots__ = ("context", "end_tick", "length", "made")

    def __init__(self, length: int) -> None:
        self.length = length
        self.context = 0
        self.made = 0
        self.end_tick = 0


class BatchMirror:
    """Knows every request's true output length, which the scheduler never learns.

    ``length_of`` says it, and 0 for a request that ended: a launch already on its way may still name that.
    """

    __slots__ = ("_ends", "_kv_tokens", "_length_of", "_members", "_rows", "_ticks", "shape")

    def __init__(self, length_of: Callable[[RequestId], int]) -> None:
        self._length_of = length_of
        self._ticks = 0
        self._kv_tokens = 0
        self._rows: dict[RequestId, _Row] = {}
        self._members: dict[RequestId, _Row] = {}
        self._ends: list[tuple[int, RequestId, _Row]] = []
        self.shape = BatchShape()
        """The shape of the step applied last."""

    def apply(self, launch: Launch) -> list[RequestId]:
        """Execute ``launch`` in thought.  Returns the requests that produced their end token, in order of id."""
        come: list[BoxedId]
        gone: list[BoxedId]
        slices: list[BoxedSlice]
        _, decode, _, come, gone, slices, _, swap_out, swap_in, copies = kinds.fields(launch)
        for id in gone:
            self._leave(id)
        for id in come:
            self._join(id)
        decoding = read = 0
        ended: list[RequestId] = []
        if decode:
            decoding, read = len(self._members), self._kv_tokens
            ended = self.repeat(1)
        shape = self._compute(slices, decoding, read, ended) if slices else kinds.SHAPE(0, decoding, read)
        self.shape = shape
        if swap_out or swap_in:
            shape.swap_pages = sum([len(pages) for _, pages, _ in (*swap_out, *swap_in)])
        if copies:
            shape.copied_pages = len(copies)
        return ended

    def _compute(self, slices: list[BoxedSlice], decoding: int, read: int, ended: list[RequestId]) -> BatchShape:
        """The shape with ``slices`` beside what the group reads; whoever ends by them is added to ``ended``."""
        rows = self._rows
        computed = pairs = 0
        for id, start, tokens, samples in slices:
            computed += tokens
            read += start
            pairs += tokens * (2 * start + tokens + 1) // 2
            if samples:
                row = rows.get(id)
                if row is None:
                    length = self._length_of(id)
                    if not length:
                        continue
                    row = rows[id] = _Row(length)
                row.context = start + tokens
                row.made += 1
                if row.made >= row.length:
                    ended.append(id)
        if len(ended) > 1:
            ended.sort()
        return kinds.SHAPE(computed, decoding, read, 0, len(slices), 0, pairs)

    def times(self, cost: CostModel) -> tuple[int, int]:
        """What the step applied last takes (ns), and how much of that its copies to and from the host add."""
        shape = self.shape
        elapsed_ns = cost.step_ns(shape)
        if not shape.swap_pages:
            return elapsed_ns, 0
        rest = msgspec.structs.replace(shape, swap_pages=0)
        return elapsed_ns, elapsed_ns - cost.step_ns(rest)

    def quiet_ticks(self) -> int:
        """Further steps of the unchanged group up to and including the first that ends a member."""
        ends = self._ends
        while ends:
            tick, _, row = ends[0]
            if row.end_tick == tick:
                return tick - self._ticks
            heappop(ends)
        return FOREVER

    def repeat(self, steps: int) -> list[RequestId]:
        """The group runs ``steps`` more steps; returns those who end in the last of them (none ends before)."""
        ticks = self._ticks = self._ticks + steps
        self._kv_tokens += steps * len(self._members)
        ends = self._ends
        ended: list[RequestId] = []
        while ends and ends[0][0] <= ticks:
            tick, id, row = heappop(ends)
            if row.end_tick == tick:
                row.end_tick = 0
                ended.append(id)
        return ended

    def release(self, id: BoxedId) -> None:
        """The request ended.  If it is in the group, the next launch says that it left."""
        row = self._rows.pop(id, None)
        if row is not None:
            row.end_tick = 0

    def reset(self) -> None:
        """A step failed: nothing is on the device any more.  Output tokens made before are kept."""
        for id in list(self._members):
            self._leave(id)

    def _join(self, id: BoxedId) -> None:
        row = self._rows.get(id)
        if row is None:
            # It ended (its client left) between sampling and joining; the next launch takes it out again.
            return
        ticks = self._ticks
        self._kv_tokens += row.context
        tick = row.end_tick = ticks + row.length - row.made
        row.context -= ticks
        row.made -= ticks
        self._members[id] = row
        if tick < FOREVER - ticks:  # one of unknown length ends when somebody says so
            heappush(self._ends, (tick, id, row))

    def _leave(self, id: BoxedId) -> None:
        row = self._members.pop(id, None)
        if row is not None:
            ticks = self._ticks
            row.context += ticks
            row.made += ticks
            row.end_tick = 0
            self._kv_tokens -= row.context
