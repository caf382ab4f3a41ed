"""One request's story from a journal: why it waited, for whom it gave way, what that cost, and how it ended.

Everything is told from events and instructions; where the journal does not say (what a policy thought), nothing is
claimed.  ``explain`` reads the journal once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path

import msgspec

from stepwell.core.errors import UserError
from stepwell.core.events import Cancel, Event, Pause, StepDone, StepFailed, Stop, Submitted, UsePolicy
from stepwell.core.instructions import (
    Admitted,
    Blocked,
    Finished,
    Instruction,
    Launch,
    Preempted,
    Rejected,
    Resumed,
)
from stepwell.core.journal import Repeated
from stepwell.core.snapshot import SchedulerSnapshot
from stepwell.core.types import NS_PER_S, RequestId
from stepwell.sim.journal_read import MISFIT, Stretch, Told, extent, misfit, stretches, turns, where_it_begins
from stepwell.sim.wording import Wait, many, named, refusal, seconds

END = {
    "stop": "ends of itself (an end token or a stop string)",
    "length": "ends at its limit of tokens",
    "cancelled": "is cancelled by its client",
    "expired": "expires: its deadline in the queue has passed",
    "error": "ends with an error: the steps it was in failed too often",
    "rejected": "is rejected by the policy",
}


class Totals(msgspec.Struct):
    """What it came to.  ``*_ns`` add up times; gaps are between two tokens of the request."""

    arrival_ns: int = 0
    first_token_ns: int = 0
    last_token_ns: int = 0
    end_ns: int = 0
    waited_ns: int = 0
    """In the line before the first admission."""
    away_ns: int = 0
    """Off the device after preemptions."""
    longest_gap_ns: int = 0
    tokens: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    copied_pages: int = 0


class Story(msgspec.Struct):
    """``moments`` are (time, what happened) in order; ``end`` is empty if the journal stops before it."""

    request: RequestId
    klass: str
    tenant: str
    prompt_tokens: int
    policy: str
    moments: list[tuple[int, str]]
    totals: Totals
    end: str = ""
    priority: int = 0
    program: str = ""

    def lines(self) -> list[str]:
        """The story for a person."""
        who = f"{self.klass}, tenant {self.tenant}"
        who += f", program {self.program}" if self.program else ""
        who += f", priority {self.priority}" if self.priority else ""
        prompt = many(self.prompt_tokens, "token")
        return [
            f"Request {self.request} ({who}), prompt of {prompt}, policy {self.policy}",
            "",
            *(f"{at_ns / NS_PER_S:>12.6f} s  {text}" for at_ns, text in self.moments),
            "",
            *_in_total(self),
        ]


def explain(path: Path, request: RequestId, told: Told | None = None) -> Story:
    """The story of ``request``.  Raises ``UserError`` if the journal does not tell of it."""
    parts = stretches(path, told)
    ids: list[RequestId] = []
    for part in parts:
        narrator = _Narrator(request, part)
        try:
            narrator.read(part)
        except MISFIT as error:
            raise misfit(path, error) from None
        if narrator.found:
            return narrator.story()
        ids += narrator.ids
    first, last = min(ids, default=0), max(ids, default=0)
    whom = f"it tells of requests {first} to {last}" if last else "it tells of no request at all"
    whom = "; ".join(where_it_begins(extent(path, parts), first, last)) or whom
    raise UserError(f"there is no request {request} in {path}: {whom}", field="request")


class _Narrator:
    """Follows one request through one stretch, and keeps just enough of the others to say who was there."""

    def __init__(self, request: RequestId, part: Stretch) -> None:
        self.id = request
        self.found = self.done = False
        self._policy = part.header.policy
        self._moments: list[tuple[int, str]] = []
        self._totals = Totals()
        self._arrived: Submitted | None = None
        self._classes: dict[RequestId, str] = {}
        self._waiting: dict[RequestId, None] = {}
        self._running: dict[RequestId, None] = {}
        self._swapped: dict[RequestId, None] = {}
        self._wait: Wait | None = None
        self._inflight: deque[bool] = deque()
        """Of each step in flight, whether it samples a token of the request."""
        self._member = False
        self._away_ns = 0
        self._mark = 0
        """Positions computed before a recompute preemption and not again yet."""
        self._slices = 0
        self._end = ""
        self._begin(part.snapshot())

    def _begin(self, snapshot: SchedulerSnapshot | None) -> None:
        if snapshot is None:
            return
        self._waiting = dict.fromkeys([*snapshot.waiting, *snapshot.followers])
        self._swapped = dict.fromkeys(snapshot.swapped)
        self._inflight += [False for _ in snapshot.inflight]
        for each in snapshot.requests:
            self._classes[each.id] = each.klass
            if each.id not in self._waiting and each.id not in self._swapped:
                self._running[each.id] = None
            if each.id == self.id:
                self.found = True
                self._member = each.id in snapshot.members
                self._arrived = Submitted(
                    each.id,
                    each.prompt_tokens,
                    each.max_tokens,
                    each.klass,
                    each.tenant,
                    priority=each.priority,
                    program=each.program,
                    parent=each.parent,
                )
                self._totals.arrival_ns = each.arrival_ns
                self._totals.preemptions = each.preemptions
                self._moments += [(at_ns, f"({state.value}: {why})") for at_ns, state, why in each.story]
                self._say(snapshot.now_ns, "here the journal begins; what came before is known in outline only")
                if each.id in self._waiting:
                    self._wait = Wait(snapshot.now_ns, self.id)
                self._away_ns = snapshot.now_ns if each.id in self._swapped else 0

    # ------------------------------------------------------------------------------------------- reading

    @property
    def ids(self) -> list[RequestId]:
        """Everybody that was there or came."""
        return list(self._classes)

    def read(self, part: Stretch) -> None:
        """Read until the request's end, or to the end of the stretch."""
        for record in part.records():
            if isinstance(record, Repeated):
                self.repeated(record)
                continue
            for now_ns, events, instructions in turns(record):
                self.turn(now_ns, events, instructions)
            if self.done:
                return

    def turn(self, now_ns: int, events: Sequence[Event], instructions: Sequence[Instruction]) -> None:
        """Take in one turn."""
        for event in events:
            self._event(now_ns, event)
        for instruction in instructions:
            self._instruction(now_ns, instruction)

    def repeated(self, record: Repeated) -> None:
        """Steps in which nothing but decoding happened."""
        if self._member or any(self._inflight):
            for now_ns in record.done_ns():
                self._step_done(now_ns)
                self._inflight.append(self._member)

    def _event(self, now_ns: int, event: Event) -> None:
        if isinstance(event, StepDone):
            self._step_done(now_ns)
        elif isinstance(event, Submitted):
            self._classes[event.request] = event.klass
            if event.request == self.id:
                self._arrive(now_ns, event)
            self._waiting[event.request] = None
        elif isinstance(event, StepFailed):
            self._inflight.clear()
            if self.id in self._running:
                what = f"step {event.step} fails on the device" if event.step else "the device is lost"
                self._say(now_ns, f"{what} ({event.reason or 'no reason given'})")
        elif isinstance(event, Cancel) and event.request == self.id and not self.done:
            self._say(now_ns, "the client leaves")
        elif isinstance(event, Stop) and event.request == self.id and not self.done:
            self._say(now_ns, f"a stop string was found; {many(event.keep, 'token')} belong to the answer")
        elif isinstance(event, UsePolicy) and self.found and not self.done:
            self._policy = f"{self._policy}, then {event.name}"
            self._say(now_ns, f"policy {event.name} takes over ({event.why or 'no reason given'})")
        elif isinstance(event, Pause) and self.found and not self.done:
            what = "everything is paused" if event.on else "everything goes on"
            self._say(now_ns, f"{what} ({event.why or 'no reason given'})")

    def _instruction(self, now_ns: int, item: Instruction) -> None:
        if isinstance(item, Launch):
            self._launch(item)
        elif isinstance(item, Admitted | Resumed):
            self._enter(now_ns, item)
        elif isinstance(item, Preempted):
            self._preempted(now_ns, item)
        elif isinstance(item, Blocked):
            if self._wait is not None:
                self._wait.blocked(now_ns, item)
        elif isinstance(item, Finished | Rejected):
            for table in (self._waiting, self._running, self._swapped):
                table.pop(item.request, None)
            if self._wait is not None:
                self._wait.gone(now_ns, item.request)
            if item.request == self.id:
                self._ends(now_ns, item)

    # ------------------------------------------------------------------------------------------- the request

    def _say(self, now_ns: int, text: str) -> None:
        self._moments.append((now_ns, text))

    def _arrive(self, now_ns: int, event: Submitted) -> None:
        self.found = True
        self._arrived = event
        self._totals.arrival_ns = now_ns
        self._wait = Wait(now_ns, self.id)
        there = [f"{many(len(self._running), 'request')} running"]
        waiting = f"{len(self._waiting)} waiting before it"
        there.append(f"{waiting} ({named(list(self._waiting))})" if self._waiting else waiting)
        if self._swapped:
            there.append(f"{len(self._swapped)} swapped out")
        choice = f", another choice of the prompt of request {event.parent}" if event.parent else ""
        self._say(now_ns, f"arrives{choice}; {', '.join(there)}")

    def _enter(self, now_ns: int, item: Admitted | Resumed) -> None:
        id = item.request
        self._waiting.pop(id, None)
        self._swapped.pop(id, None)
        self._running[id] = None
        wait = self._wait
        if wait is None:
            return
        wait.overtaken(now_ns, id)
        if id != self.id:
            return
        self._wait = None
        waited_ns = now_ns - wait.since_ns
        if self._away_ns:
            self._totals.away_ns += waited_ns
            how = "is copied back" if isinstance(item, Resumed) else "is admitted again"
            text = f"{how} after {seconds(waited_ns)} off the device"
            self._away_ns = 0
        else:
            self._totals.waited_ns = waited_ns
            text = f"is admitted after {seconds(waited_ns)} in line"
        if isinstance(item, Admitted) and item.cached:
            parent = self._arrived.parent if self._arrived is not None else 0
            whence = f"shared with request {parent}" if parent else "found in the cache"
            text += f", {many(item.cached, 'token')} of its prompt {whence}"
        reasons = wait.reasons(now_ns)
        self._say(now_ns, f"{text}: {reasons}" if reasons else text)

    def _preempted(self, now_ns: int, item: Preempted) -> None:
        id = item.request
        self._running.pop(id, None)
        (self._swapped if item.mode == "swap" else self._waiting)[id] = None
        if id != self.id:
            return
        self._totals.preemptions += 1
        self._away_ns = now_ns
        self._member = False
        self._wait = Wait(now_ns, self.id)
        whom = ""
        if item.beneficiary:
            klass = self._classes.get(item.beneficiary, "")
            whom = f" to request {item.beneficiary}" + (f" ({klass})" if klass else "")
        if item.mode == "swap":
            cost = f"its {many(item.pages, 'page')} ({many(item.tokens, 'token')}) move to the host"
        else:
            self._mark = max(item.tokens, self._mark)
            cost = f"its {many(item.pages, 'page')} are dropped, {many(item.tokens, 'token')} must be computed again"
        leaves = f"gives way{whom}" if whom else "leaves the device"
        self._say(now_ns, f"{leaves} (preemption {self._totals.preemptions}, reason {item.reason!r}): {cost}")

    def _launch(self, launch: Launch) -> None:
        if self.id in launch.joined:
            self._member = True
        if self.id in launch.left:
            self._member = False
        samples = launch.decode and self._member
        for id, start, tokens, sampled in launch.slices:
            if id == self.id:
                self._slices += 1
                self._totals.recomputed_tokens += max(0, min(start + tokens, self._mark) - start)
                if start + tokens >= self._mark:
                    self._mark = 0
                samples = samples or sampled
        for copies in (launch.swap_out, launch.swap_in):
            for id, pages, _ in copies:
                if id == self.id:
                    self._totals.copied_pages += len(pages)
        self._inflight.append(samples)

    def _step_done(self, now_ns: int) -> None:
        if not (self._inflight and self._inflight.popleft()) or self.done:
            return
        totals = self._totals
        if totals.first_token_ns:
            totals.longest_gap_ns = max(totals.longest_gap_ns, now_ns - totals.last_token_ns)
        elif self._arrived is not None and self._slices:
            totals.first_token_ns = now_ns
            after = seconds(now_ns - totals.arrival_ns)
            self._say(
                now_ns, f"gives its first token, {after} after it arrived (prompt in {many(self._slices, 'slice')})"
            )
        totals.last_token_ns = now_ns

    def _ends(self, now_ns: int, item: Finished | Rejected) -> None:
        self.done = True
        self._totals.end_ns = now_ns
        if self._wait is not None and self.id and isinstance(item, Finished):
            reasons = self._wait.reasons(now_ns)
            waited = f"has waited {seconds(now_ns - self._wait.since_ns)} so far" + (f": {reasons}" if reasons else "")
            self._say(now_ns, waited)
        if isinstance(item, Rejected):
            self._end = f"is refused: {refusal(item)}"
        else:
            self._totals.tokens = item.tokens
            self._end = f"{END[item.reason]}, after {many(item.tokens, 'output token')}"
        self._say(now_ns, self._end)

    def story(self) -> Story:
        """What was gathered."""
        arrived = self._arrived or Submitted(self.id, 0, 0)
        return Story(
            self.id,
            arrived.klass,
            arrived.tenant,
            arrived.prompt_tokens,
            self._policy,
            self._moments,
            self._totals,
            self._end,
            arrived.priority,
            arrived.program,
        )


def _in_total(story: Story) -> list[str]:
    totals = story.totals
    if not story.end:
        return ["The journal stops before this request ends."]
    if not totals.first_token_ns:
        return [f"In total: {seconds(totals.end_ns - totals.arrival_ns)} from arrival to its end, without a token."]
    whole_ns, device_ns = totals.end_ns - totals.arrival_ns, 0
    device_ns = whole_ns - totals.waited_ns - totals.away_ns
    lines = [
        f"In total: {seconds(whole_ns)} from arrival to its end: {seconds(totals.waited_ns)} in line,"
        f" {seconds(device_ns)} on the device, {seconds(totals.away_ns)} off it after"
        f" {many(totals.preemptions, 'preemption')}."
    ]
    times = [f"TTFT {seconds(totals.first_token_ns - totals.arrival_ns)}"]
    if totals.tokens >= 2:
        mean_ns = (totals.last_token_ns - totals.first_token_ns) // (totals.tokens - 1)
        times.append(f"TPOT {seconds(mean_ns)}, longest gap between tokens {seconds(totals.longest_gap_ns)}")
    lines.append(f"Tokens: {totals.tokens}; {', '.join(times)}.")
    if totals.preemptions:
        lines.append(
            f"Preemptions cost {many(totals.recomputed_tokens, 'token')} computed again and"
            f" {many(totals.copied_pages, 'page')} copied, out and back together."
        )
    return lines
