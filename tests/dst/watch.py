"""Watches every turn of the engine: the journal, the laws of tables and pages, and a device that believes nothing."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stepwell.core.events import Event, Submitted
from stepwell.core.instructions import Finished, Instruction, Launch, PolicyFault, Rejected
from stepwell.core.invariants import check_state
from stepwell.core.journal_file import JournalWriter
from stepwell.core.scheduler import Scheduler
from stepwell.tests.dst.client import keys_of
from stepwell.tests.dst.scenario import Scenario, Visit
from stepwell.tests.stateful.executor import Executor
from stepwell.tests.stateful.kv_memory import Memory
from stepwell.tests.stateful.rows import must

MOST_TURNS = 20_000
"""A life that takes more runs in circles."""


class Watch:
    """An observer.  A broken law raises, and so stops the engine; ``broken`` keeps the first, for whoever asks."""

    def __init__(self, scenario: Scenario, scheduler: Scheduler, writer: JournalWriter) -> None:
        self.scheduler = scheduler
        self.visits: dict[int, Visit] = {}
        """By request, as the engine numbered them."""
        self.ends: dict[int, Finished | Rejected] = {}
        self.faults: list[PolicyFault] = []
        self.turns = 0
        self.went_back = False
        """The clock did: the engine must have stopped there."""
        self.broken: Exception | None = None
        self._writer = writer
        self._rotate = scenario.house.segment_turns
        self._now_ns = 0
        allocator, house = scheduler.state.allocator, scenario.house
        memory = Memory(house.pages, house.page_size, house.host_pages, allocator.key_tokens)
        self._device = Executor(house.limits(), memory, house.cap, self._answer_keys)
        self._device.rejects = house.rejects

    def observe(self, now_ns: int, events: Sequence[Event], out: Sequence[Instruction]) -> None:
        self.turns += 1
        self._writer.observe(now_ns, events, out)
        if now_ns < self._now_ns:
            self.went_back = True
            return
        self._now_ns = now_ns
        try:
            self._check(now_ns, events, out)
        except Exception as error:
            self.broken = self.broken or error
            raise
        if self._rotate and self.turns % self._rotate == 0:
            self._writer.rotate()

    def _check(self, now_ns: int, events: Sequence[Event], out: Sequence[Instruction]) -> None:
        must(self.turns < MOST_TURNS, f"{self.turns} turns and no end")
        for each in out:
            if isinstance(each, Finished | Rejected):
                must(each.request not in self.ends, f"{each} after {self.ends.get(each.request)}")
                self.ends[each.request] = each
            elif isinstance(each, PolicyFault):
                self.faults.append(each)
        held = self.scheduler.paused
        check_state(self.scheduler.state)
        self._device.before(now_ns, self._known(events))
        self._device.follow([each for each in out if not isinstance(each, PolicyFault)])
        state = self.scheduler.state
        must(list(state.requests) == list(self._device.live), "scheduler and device disagree on who is live")
        for id, row in self._device.live.items():
            request = state.requests[id]
            numbers = (request.computed, request.generated, list(state.allocator.table(id)))
            must(numbers == (row.stored, row.sampled, row.table), f"request {id}: {numbers} for the scheduler, {row}")
        must(not held or not any(isinstance(each, Launch) for each in out), "a step was launched while all is paused")
        waits = self._device.flights or self._device.wake_ns > now_ns or self.scheduler.faulted or held
        must(not state.requests or bool(waits), f"{list(state.requests)} wait, for nothing")

    def _known(self, events: Sequence[Event]) -> list[Event]:
        """A parent that left before the scheduler heard of it is none."""
        here = {event.request for event in events if isinstance(event, Submitted)}
        return [
            msgspec.structs.replace(event, parent=0)
            if isinstance(event, Submitted) and event.parent not in here and event.parent not in self._device.rows
            else event
            for event in events
        ]

    def _answer_keys(self, request: int, prompt_tokens: int) -> list[int]:
        """Of the pages behind its prompt, as far as anybody could compute."""
        visit, allocator = self.visits[request], self.scheduler.state.allocator
        whole = visit.prompt + visit.answer(self._device.cap + 1)
        return keys_of(allocator, whole, visit.tenant)[prompt_tokens // allocator.key_tokens :]
