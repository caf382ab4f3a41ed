"""A device that believes nothing: it rebuilds page tables, the decode group and memory itself from the instructions.

It shares no code with the scheduler.  Every page holds, for each of its token positions, whose token was written there;
a step that reads a position must find it, and so must whoever is admitted with a prompt that others computed.  A law
that does not hold raises ``BrokenLawError``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

from stepwell.core.events import Cancel, Event, StepDone, StepFailed, Stop, Submitted
from stepwell.core.instructions import (
    Admitted,
    Blocked,
    Finished,
    Instruction,
    Launch,
    PolicyFault,
    Preempted,
    Rejected,
    Resumed,
    Run,
    Wake,
)
from stepwell.core.limits import SchedulerLimits
from stepwell.tests.stateful.kv_memory import Cell, Memory
from stepwell.tests.stateful.rows import BrokenLawError, Flight, Row, must

Answers = Callable[[int, int], list[int]]
"""Keys of the pages behind those of a prompt, by request and prompt tokens; none if nobody is to find its answer."""


class Executor:
    """See the module.  ``before`` is told of events, then ``follow`` of the instructions they led to."""

    def __init__(self, limits: SchedulerLimits, memory: Memory, cap: int, answers: Answers) -> None:
        self.limits = limits
        self.ranks = {each.name: each.rank for each in limits.classes}
        self.memory = memory
        self.cap = cap
        self.answers = answers
        self.now_ns = 0
        self.rows: dict[int, Row] = {}
        self.live: dict[int, Row] = {}
        self.arrived: list[int] = []
        self.members: dict[int, Row] = {}
        self.flights: deque[Flight] = deque()
        self.last_step = 0
        self.done_step = 0
        self.wake_ns = 0
        self.failing = False
        self.copying: dict[int, Row] = {}
        self.fresh: dict[int, Row] = {}
        self.rejects = False
        """Whether the policy may reject."""

    # ------------------------------------------------------------------------------------------------ events

    def before(self, now_ns: int, events: Sequence[Event]) -> None:
        self.now_ns = now_ns
        self.failing = False
        self.arrived.clear()
        for event in events:
            if isinstance(event, Submitted):
                self.arrived.append(event.request)
                bound = min(event.max_tokens, self.cap - event.prompt_tokens)
                rank = self.ranks.get(event.klass, 0)
                keys = event.keys + self.answers(event.request, event.prompt_tokens)
                row = Row(event.request, event.prompt_tokens, bound, event.expires_ns, rank, keys, event.parent)
                row.origin = self.rows[event.parent].origin if event.parent else event.request
                self.rows[row.id] = self.live[row.id] = row
            elif isinstance(event, StepDone):
                self.done(event.step, event.ended)
            elif isinstance(event, StepFailed):
                self.fail(event)
            elif isinstance(event, Cancel):
                self.due(event.request, "cancelled", -1)
            elif isinstance(event, Stop):
                self.due(event.request, "stop", event.keep)

    def due(self, id: int, reason: str, tokens: int) -> None:
        row = self.live.get(id)
        if row is not None:
            row.due.setdefault(reason, tokens)

    def done(self, step: int, ended: Iterable[int] = ()) -> None:
        flight = self.flights.popleft()
        must(flight.step == step, f"the driver reported step {step}, in flight was {flight.step}")
        self.done_step = step
        for id in flight.sampled:
            row = self.rows[id]
            if not row.ended and "stop" not in row.due:  # or it ended in an earlier step of this very batch
                row.made += 1
        for id in ended:
            self.due(id, "stop", -1)

    def fail(self, event: StepFailed) -> None:
        """Nothing of the steps in flight exists, and nothing on the device can be relied on."""
        self.failing = True
        for flight in self.flights:
            for id in flight.sampled:
                self.rows[id].sampled -= 1
            self.memory.spoil_host(flight.host_written)
        self.memory.spoil_device()
        if event.device_lost:
            self.memory.spoil_host(range(self.memory.host_total))
        self.flights.clear()
        self.members.clear()
        for id in event.blamed:
            self.due(id, "error", -1)
        for row in self.live.values():
            if row.seated or (row.swapped and (event.device_lost or row.copy_step > self.done_step)):
                row.failed += 1
                if self.limits.max_failures and row.failed > self.limits.max_failures:
                    row.due.setdefault("error", -1)
        self.done_step = self.last_step

    # ------------------------------------------------------------------------------------------ instructions

    def follow(self, out: Sequence[Instruction]) -> None:
        for it in out:
            if isinstance(it, Launch):
                self.launch(it)
            elif isinstance(it, Run):
                self.run(it)
            elif isinstance(it, Finished):
                self.finished(it)
            elif isinstance(it, Admitted):
                self.admitted(it)
            elif isinstance(it, Preempted):
                self.preempted(it)
            elif isinstance(it, Resumed):
                row = self.row(it.request)
                must(row.swapped and not row.seated, f"request {row.id} resumed but not swapped")
                row.swapped, row.seated, row.found = False, True, 0
                self.fresh[row.id] = row
            elif isinstance(it, Rejected):
                must(it.request in self.arrived, f"request {it.request} rejected, but not on arrival")
                self.live.pop(it.request).ended = True
                self.arrived.remove(it.request)
            elif isinstance(it, Blocked):
                must(not self.row(it.request).seated, f"request {it.request} runs and is said to be blocked")
            elif isinstance(it, Wake):
                must(it.at_ns > self.now_ns, "a wake in the past")
                self.wake_ns = it.at_ns
            elif isinstance(it, PolicyFault):
                must(False, f"the policy broke {it.rule!r}: {it.detail}")
        for row in self.live.values():
            must(not row.due, f"request {row.id} should have ended: {row.due}")
        must(not self.copying, f"requests {list(self.copying)} were preempted by swap, but nothing was copied")
        must(not self.fresh, f"requests {list(self.fresh)} were taken in, but no table was launched")

    def row(self, id: int) -> Row:
        row = self.live.get(id)
        if row is None:
            raise BrokenLawError(f"request {id} is told about, but it is not live")
        return row

    def admitted(self, it: Admitted) -> None:
        row = self.row(it.request)
        must(not row.seated and not row.swapped, f"request {row.id} admitted twice")
        for flight in self.flights:
            must(row.id not in flight.sampled, f"request {row.id} admitted while step {flight.step} samples it")
        parent = self.live.get(row.parent)
        must(
            parent is None or parent.made > 0, f"request {row.id} admitted before its parent {row.parent} has a prompt"
        )
        must(not row.expires_ns or row.begun or row.expires_ns > self.now_ns, f"request {row.id} started expired")
        row.seated = row.begun = True
        row.stored = row.found = it.cached
        must(it.cached < row.known, f"request {row.id} finds all its {it.cached} tokens, and none is left to compute")
        self.fresh[row.id] = row

    def preempted(self, it: Preempted) -> None:
        row = self.row(it.request)
        must(row.seated or self.failing, f"request {row.id} preempted but it does not run")
        must(it.tokens == row.stored, f"request {row.id} loses {it.tokens} computed tokens, it has {row.stored}")
        must(it.pages == self.alone(row), f"request {row.id} gives up {it.pages} pages, its own are {self.alone(row)}")
        better = it.beneficiary in self.live and self.live[it.beneficiary].rank < row.rank
        if not self.failing and not (it.mode == "swap" and better):
            row.preempted += 1
            limit = self.limits.max_preemptions
            must(not limit or row.preempted <= limit, f"request {row.id} preempted {row.preempted} times")
        row.seated = row.swapped = False
        if it.mode == "swap":
            row.swapped = True
            self.copying[row.id] = row
        else:
            row.table, row.host, row.stored = [], [], 0

    def finished(self, it: Finished) -> None:
        row = self.row(it.request)
        tokens = row.due.get(it.reason, -1)
        legal = it.reason in row.due
        if it.reason == "length":
            legal = row.made == row.max_tokens
        elif it.reason == "expired":
            legal = not row.begun and 0 < row.expires_ns <= self.now_ns
        elif it.reason == "rejected":
            legal = self.rejects and not row.seated
        must(legal, f"request {row.id} ended by {it.reason}, asked were {row.due}, {row.made} tokens made")
        expected = row.made if tokens < 0 else tokens
        must(it.tokens == expected, f"request {row.id} ended with {it.tokens} tokens, {expected} exist")
        must(it.pages == self.alone(row), f"request {row.id} frees {it.pages} pages, its own are {self.alone(row)}")
        row.ended, row.seated, row.swapped = True, False, False
        row.due.clear()
        row.table, row.host = [], []
        del self.live[row.id]

    def alone(self, row: Row) -> int:
        """Pages of its table that no other request on the device holds."""
        shared = {page for each in self.live.values() if each is not row and not each.swapped for page in each.table}
        return sum(page not in shared for page in row.table)

    def cells(self, row: Row, start: int, stop: int) -> list[Cell]:
        """What positions ``start`` to ``stop`` of a request hold."""
        keyed = {place: -key for place, key in enumerate(row.keys)}

        def writer(position: int) -> int:
            own = row.origin if position < row.prompt else row.id
            return keyed.get(position // self.memory.key_tokens, own)

        return [(writer(position), position) for position in range(start, stop)]

    # ---------------------------------------------------------------------------------------------- launches

    def run(self, it: Run) -> None:
        """The device's part of ``RunDone``: it ends a step and begins the next one, ``count`` times."""
        growth: list[list[int]] = [[] for _ in range(it.count)]
        for offset, id, page in zip(it.growth[::3], it.growth[1::3], it.growth[2::3], strict=True):
            growth[offset] += (id, page)
        for index, flat in enumerate(growth):
            self.done(it.step + index - 1)
            self.launch(Launch(it.step + index, True, flat))

    def launch(self, it: Launch) -> None:
        must(it.step == self.last_step + 1, f"step {it.step} follows step {self.last_step}")
        self.last_step = it.step
        must(len(self.flights) < self.limits.depth, f"step {it.step} is one too many in flight")
        flight = Flight(it.step)
        for id, device, host in it.swap_out:
            self.swap_out(flight, id, device, host)
        named = flight.pages.union(*(each.pages for each in self.flights))
        fresh: set[int] = set()
        targets = [target for _, target in it.copies]
        found: list[Row] = []
        for id, pages in it.tables:
            row = self.fresh.pop(id, None)
            if row is None or row.table:
                raise BrokenLawError(f"request {id} gets a table, but was not taken in")
            found.append(row)
            fresh.update(self.append(id, self.adopt(row, pages, targets), named))
        for id, page in zip(it.growth[::2], it.growth[1::2], strict=True):
            fresh.update(self.append(id, [page], named))
        for id, device, host in it.swap_in:
            self.swap_in(flight, id, device, host)
        self.copy(it.copies, fresh)
        for row in found:
            wrong = self.memory.missing(self.cells(row, 0, row.found), row.table)
            must(wrong < 0, f"request {row.id} finds {row.found} tokens in {row.table}, but not {wrong}")
        self.regroup(it)
        batch = list(self.members) if it.decode else []
        must(not it.decode or bool(batch), f"step {it.step} decodes an empty group")
        for id in batch:
            row = self.members[id]
            must(row.known == row.stored + 1, f"request {id} decodes with {row.known - row.stored} tokens pending")
            self.compute(flight, row, row.stored, 1, True)
        for id, start, tokens, samples in it.slices:
            must(id not in self.members or not it.decode, f"request {id} is in the group and has a slice")
            must(id not in batch, f"request {id} computes twice in step {it.step}")
            batch.append(id)
            self.compute(flight, self.row(id), start, tokens, samples)
        spent = sum(tokens for _, _, tokens, _ in it.slices) + (len(self.members) if it.decode else 0)
        must(spent <= self.limits.token_budget, f"step {it.step} computes {spent} tokens")
        seats = sum(row.seated for row in self.live.values())
        must(seats <= self.limits.running_limit, f"{seats} requests run in step {it.step}")
        must(bool(batch or it.swap_out or it.swap_in), f"step {it.step} does nothing")
        self.flights.append(flight)

    def adopt(self, row: Row, pages: Sequence[int], targets: Sequence[int]) -> Sequence[int]:
        """Take over the pages that the request found computed; returns those of ``pages`` that are its own."""
        count = self.memory.pages_of(row.found)
        while count and pages[count - 1] in targets:
            count -= 1
        must(count <= row.found // self.memory.page_size, f"request {row.id} finds a part of a page in {pages}")
        for flight in self.flights:
            early = flight.written.intersection(pages[:count])
            must(not early, f"request {row.id} finds pages {early}, which step {flight.step} still computes")
        row.table += pages[:count]
        return pages[count:]

    def copy(self, copies: Sequence[tuple[int, int]], fresh: set[int]) -> None:
        """Within the device: into pages just given away, and read before anything is written."""
        done: set[int] = set()
        for source, target in copies:
            must(target in fresh and target not in done, f"page {source} is copied to {target}, which is not new")
            must(source not in done, f"page {source} is copied to {target} when it was overwritten already")
            done.add(target)
            self.memory.copy(source, target)

    def append(self, id: int, pages: Sequence[int], named: set[int]) -> Sequence[int]:
        owners = {page: row.id for row in self.live.values() for page in row.table}
        row = self.row(id)
        must(row.seated, f"request {id} does not run and gets pages {pages}")
        for page in pages:
            must(0 <= page < self.memory.total, f"page {page} does not exist")
            must(page not in owners, f"page {page} of request {owners.get(page)} is given to request {id}")
            must(page not in named, f"page {page} is given to request {id} while a step in flight names it")
            owners[page] = id
            row.table.append(page)
        return pages

    def swap_out(self, flight: Flight, id: int, device: Sequence[int], host: Sequence[int]) -> None:
        row = self.copying.pop(id, None)
        if row is None:
            raise BrokenLawError(f"request {id} is copied out, but was not preempted by swap")
        count = self.memory.pages_of(row.stored)
        must(list(device) == row.table[:count], f"request {id} stores {device}, its table is {row.table}")
        must(len(host) == count, f"request {id} needs {count} host pages, it got {host}")
        owned = {page for other in self.live.values() for page in other.host}
        named = {page for each in self.flights for page in each.host_pages}
        for page in host:
            must(0 <= page < self.memory.host_total, f"host page {page} does not exist")
            must(page not in owned and page not in named, f"host page {page} is given away twice")
            owned.add(page)
        flight.pages.update(row.table)
        flight.host_pages.update(host)
        flight.host_written.update(host)
        self.memory.copy_out(device, host)
        row.table, row.host = [], list(host)
        row.copy_step = flight.step

    def swap_in(self, flight: Flight, id: int, device: Sequence[int], host: Sequence[int]) -> None:
        row = self.row(id)
        must(list(host) == row.host, f"request {id} stored {row.host}, copied back is {host}")
        must(row.copy_step <= self.done_step, f"request {id} is copied back before it was copied out")
        must(list(device) == row.table[: len(device)], f"request {id} is copied to {device}, its table is {row.table}")
        must(len(device) == len(host), f"request {id} is copied from {host} to {device}")
        self.memory.copy_in(device, host)
        flight.pages.update(row.table)
        flight.host_pages.update(host)
        row.host = []
        row.copy_step = flight.step

    def regroup(self, it: Launch) -> None:
        for id in it.left:
            must(self.members.pop(id, None) is not None, f"request {id} left the group without being in it")
        for id in it.joined:
            row = self.row(id)
            must(id not in self.members, f"request {id} joined the group twice")
            must(row.sampled > 0, f"request {id} joined before anything was sampled")
            self.members[id] = row

    def compute(self, flight: Flight, row: Row, start: int, tokens: int, samples: bool) -> None:
        id = row.id
        must(row.seated and not row.ended, f"request {id} computes in step {flight.step} but does not run")
        must(row.copy_step <= self.done_step, f"request {id} runs before it is copied back")
        must(start == row.stored, f"request {id} computes from {start} on, {row.stored} tokens are stored")
        must(0 < tokens <= row.known - start, f"request {id} computes {tokens} tokens, {row.known - start} are left")
        must(samples == (start + tokens == row.known), f"request {id} samples: {samples}")
        must(start + tokens <= len(row.table) * self.memory.page_size, f"request {id} computes beyond its pages")
        wrong = self.memory.missing(self.cells(row, 0, start), row.table)
        must(wrong < 0, f"request {id} reads position {wrong} in step {flight.step}, which is not its own")
        written = row.table[start // self.memory.page_size : self.memory.pages_of(start + tokens)]
        readers = {page for each in self.live.values() if each is not row for page in each.table}
        must(readers.isdisjoint(written), f"request {id} writes pages {written}, which others read")
        self.memory.write(self.cells(row, start, start + tokens), row.table)
        flight.written.update(written)
        flight.pages.update(row.table)
        row.stored += tokens
        if samples:
            row.sampled += 1
            must(row.sampled <= row.max_tokens, f"request {id} samples more than {row.max_tokens} tokens")
            flight.sampled.append(id)
