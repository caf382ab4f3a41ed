"""Repeats: a plan that holds for further steps, launched again without asking the policy.

A shell on a virtual clock asks ``repeatable`` and reports many steps by one ``RunDone``.  The scheduler ends in the
state, and the journal in the bytes, that the same steps one by one would have led to.
"""

from __future__ import annotations

from typing import Any

from stepwell.core import kinds
from stepwell.core.applying import append_pages
from stepwell.core.errors import InvariantError
from stepwell.core.events import RunDone
from stepwell.core.protocols import NotNow
from stepwell.core.state import State, StepRecord
from stepwell.core.types import FOREVER, RequestId


class Repeats:
    """``left``: for how many further steps the present plan holds; ``until_ns``: and until when.

    ``launched_ns`` is when the latest of its steps was launched.  ``expiries``: a heap of the queue deadlines to come,
    each of which ends the repeats, even that of a request that has begun.
    """

    __slots__ = ("_depth", "_expiries", "_state", "launched_ns", "left", "until_ns")

    def __init__(self, state: State, expiries: list[tuple[int, RequestId]]) -> None:
        self._state = state
        self._expiries = expiries
        self._depth = state.limits.depth
        self.left = 0
        self.until_ns = FOREVER
        self.launched_ns = 0

    def repeatable(self, at_most: int) -> tuple[int, int]:
        """How many further steps the present plan holds for if nothing happens, and until when it may be relaunched.

        For a shell that takes repeats in one go (``RunDone``): it may report as many as the first number of steps done,
        all of them before the second (ns), none of which ends a request.
        """
        state = self._state
        steps = min(at_most, self.left)
        if steps <= 0 or self._depth != 1 or len(state.inflight) != 1 or state.inflight[0].last:
            return 0, 0
        until_ns = min(self.until_ns, self._expiries[0][0]) if self._expiries else self.until_ns
        group = state.group
        steps = min(steps, group.next_end() - group.launched)
        free = state.allocator.free_pages
        if free < len(group.members) * (steps // group.page_size + 1):
            full = group.full
            launched = group.launched
            for step in range(steps):
                phase = full.get(launched + step)
                if phase is not None:
                    free -= len(phase.members)
                if free < 0 or step >= group.page_size:
                    return step, until_ns
        return steps, until_ns

    def relaunch(self) -> list[int]:
        """Launch the decode group once more; returns the pages appended."""
        state, group = self._state, self._state.group
        growing = group.grow(group.launched)
        growth = append_pages(state, growing) if growing else []
        id = state.next_step
        state.next_step = id + 1
        self.launched_ns = state.now_ns
        last = group.tick(id)
        state.inflight.append(StepRecord(id, group.launched, last))
        if last:
            self.left = 0
            for request in last:
                state.draining[request.id] = request
        else:
            self.left -= 1
        return growth

    def take(self, event: RunDone) -> None:
        """A repeated plan went on for several steps: exactly a ``StepDone`` and a relaunch for each of them."""
        state, group = self._state, self._state.group
        done_ns, begins = event.done_ns, event.step
        count = len(done_ns)
        if not state.inflight or not count or done_ns[-1] != state.now_ns:
            raise InvariantError(f"a run of {count} steps from {begins} on does not end now, at {state.now_ns} ns")
        step = state.inflight.popleft()
        allowed = min(self.left, group.next_end() - group.launched)
        if step.id != begins or step.last or self._depth != 1 or not 0 < count <= allowed:
            raise InvariantError(f"a run of {count} steps from {begins} on was not allowed")
        # Of Any, because compiled code would unbox every integer and box it again.
        growing: list[Any] = []
        offsets: list[Any] = []
        before_ns = done_ns[-2] if count > 1 else self.launched_ns
        state.speeds.learn(0, 0, True, state.now_ns - before_ns, 0)
        first, full = group.launched, group.full
        for offset in range(count - 1):
            if first + offset in full:
                ids = group.grow(first + offset)
                growing += ids
                offsets += [offset] * len(ids)
        group.launched = first + count - 1
        growth: list[Any] = []
        if growing:
            pages: list[Any] | NotNow = state.allocator.grow(growing)
            assert not isinstance(pages, NotNow)
            for index, page in enumerate(pages):
                growth.append(offsets[index])
                growth.append(growing[index])
                growth.append(page)
        state.next_step += count - 1
        self.left -= count - 1
        last: list[Any] = self.relaunch()
        for index in range(0, len(last), 2):
            growth.append(count - 1)
            growth.append(last[index])
            growth.append(last[index + 1])
        done = state.progress.done = state.next_step - 2
        state.allocator.step_done(done)
        state.out.append(kinds.RUN(begins + 1, count, growth))
