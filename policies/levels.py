"""Levels that requests sink through as they are served: the part that multi-level feedback policies share.

A request's level follows from the output tokens it has, and nobody gets more than one of those in a step.  So whoever
is so many tokens above the next level is looked at again when as many steps have been launched, and not before: a step
costs what changes in it, O(log n) each.  One that was held back meanwhile is then given what it still has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush

import msgspec

from stepwell.core.plan import StepPlan
from stepwell.core.protocols import PolicyEvent, RequestView, SchedulerView
from stepwell.core.types import FOREVER, RequestId, StepId
from stepwell.policies.deadlines import Gives, mode_of
from stepwell.policies.line import Key
from stepwell.policies.toolkit import Aging, pack

Place = tuple[int, int]
"""The level that a request is in, from 1 (the best), and after how many more output tokens, at least, it sinks."""

Member = tuple[int, StepId, RequestView]
"""Of a level; not before which step it sinks."""


class Levels:
    """Whoever waits and whoever runs, by level, then arrival; the elder comes first of all at the age of ``age_ns``.

    ``place`` says where a request is; it never rises.  ``observe`` every event.
    """

    def __init__(self, place: Callable[[RequestView], Place], age_ns: int) -> None:
        self.queue = Aging(self._by_level, age_ns)
        self._place = place
        self._came: dict[RequestId, RequestView] = {}
        """Of those who run, whoever no plan was made with yet."""
        self._members: dict[RequestId, Member] = {}
        self._levels: list[dict[RequestId, RequestView]] = []
        self._sinks: list[tuple[StepId, RequestId]] = []

    def _by_level(self, request: RequestView, now_ns: int) -> Key:
        return (self._place(request)[0], request.id)

    def observe(self, event: PolicyEvent) -> None:
        """Take notice of an event."""
        self.queue.observe(event)
        kind, id = event.kind, event.request.id
        if kind == "admitted" or kind == "resumed":
            self._came[id] = event.request
        elif kind != "arrived" and kind != "refused":
            self._came.pop(id, None)
            left = self._members.pop(id, None)
            if left is not None:
                del self._levels[left[0]][id]

    def reorder(self) -> None:
        """Something else than their tokens has changed where they are."""
        self.queue.reorder()
        self._came = {id: request for id, (_, _, request) in self._members.items()} | self._came
        self._members.clear()
        self._levels.clear()
        self._sinks.clear()

    def plan(self, view: SchedulerView, gives: Gives) -> StepPlan:
        """Fill the next step.  A running request of a lower level gives way to a waiting one of a better, as ``gives``
        says; a plan that repeats does so until somebody sinks."""
        queue, line = self.queue, self.queue.line
        line.start(view.now_ns)
        self._sink(view.step)
        yields = gives != "never" and self._any_worse(line.head(), view.now_ns)
        plan = pack(view, line, rank=queue.rank, mode=mode_of(gives), yields=yields, worst=self.worst_first)
        if plan.repeat and plan.blocked is not None and gives != "never":
            return msgspec.structs.replace(plan, repeat=self._steps(view.step))
        return plan

    def _sink(self, step: StepId) -> None:
        """Let in whoever came to run, and let sink whoever sinks by ``step``."""
        if self._came:
            for request in self._came.values():
                self._enter(request, step)
            self._came.clear()
            if len(self._sinks) > 2 * len(self._members) + 64:
                self._sinks = [each for each in self._sinks if self._stands(each)]
                heapify(self._sinks)
        while self._sinks and self._sinks[0][0] <= step:
            entry = heappop(self._sinks)
            if self._stands(entry):
                level, _, request = self._members[entry[1]]
                del self._levels[level][entry[1]]
                self._enter(request, step)

    def _enter(self, request: RequestView, step: StepId) -> None:
        level, tokens = self._place(request)
        due = step + tokens
        while len(self._levels) <= level:
            self._levels.append({})
        self._levels[level][request.id] = request
        self._members[request.id] = (level, due, request)
        if tokens < FOREVER:
            heappush(self._sinks, (due, request.id))

    def _stands(self, entry: tuple[StepId, RequestId]) -> bool:
        """Whether it has not left since."""
        member = self._members.get(entry[1])
        return member is not None and member[1] == entry[0]

    def _any_worse(self, head: RequestView | None, now_ns: int) -> bool:
        """Whether somebody who runs would have to give way to ``head``, if need be."""
        if head is None:
            return False
        best, aged = self.queue.rank(head, now_ns)[0], self.queue.aged(now_ns)
        below = range(len(self._levels) - 1, best, -1)
        return any(not self._levels[level].keys() <= aged for level in below)

    def worst_first(self, now_ns: int) -> Iterator[tuple[int, RequestView]]:
        """Who runs, with their levels; of a level whoever came last first.  Elders give way to nobody."""
        aged = self.queue.aged(now_ns)
        for level in range(len(self._levels) - 1, 0, -1):
            members = self._levels[level]
            for id in sorted(members, reverse=True):
                if id not in aged:
                    yield level, members[id]

    def _steps(self, step: StepId) -> int:
        """Further steps after this one for which nobody who runs sinks, so that nobody new must give way."""
        while self._sinks and not self._stands(self._sinks[0]):
            heappop(self._sinks)
        return self._sinks[0][0] - step - 1 if self._sinks else FOREVER
