"""A journal as lines for a person: one a turn, with its time, the step in question, and what happened.

``done 41: 7 ended | arrive 9 (chat, 512 tokens) → finish 7 (stop, 83 tokens), admit 9; launch 42: decode 11, prefill
9 [0..512) ●``.  Left of the arrow is what came in, right of it what was decided; ● marks a slice that samples a token.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stepwell.core.events import (
    Cancel,
    Event,
    Pause,
    Pin,
    ResetCache,
    StepDone,
    StepFailed,
    Stop,
    Submitted,
    Timer,
    UsePolicy,
)
from stepwell.core.instructions import (
    Admitted,
    Blocked,
    CacheReset,
    Finished,
    Instruction,
    Launch,
    PolicyFault,
    Preempted,
    Rejected,
    Resumed,
    Wake,
)
from stepwell.core.journal import Gap, Prompt, Record, Repeated, Sampled, Turn
from stepwell.core.types import NS_PER_S, RequestId, StepId
from stepwell.sim.journal_read import stretches
from stepwell.sim.wording import SHORT_OF, many, named, seconds


def show(path: Path, *, from_ns: int = 0, request: RequestId = 0) -> Iterator[str]:
    """Lines of the journal at ``path`` from ``from_ns`` on; with ``request`` only turns that name it."""
    for part in stretches(path):
        snapshot = part.snapshot()
        teller = _Teller(snapshot.members if snapshot is not None else [])
        if snapshot is not None:
            yield f"-- {part.segments[0].path.name} begins here with a snapshot --"
        for record in part.records():
            at_ns, step, text = teller.tell(record)
            if at_ns >= from_ns and (not request or _names(record, request)):
                yield f"{at_ns / NS_PER_S:>12.6f} s  step {step:<6} {text}"


class _Teller:
    """Puts records into words; remembers the time and how many requests decode."""

    def __init__(self, members: list[RequestId]) -> None:
        self._members = len(members)
        self._now_ns = 0
        self._step: StepId = 0

    def tell(self, record: Record) -> tuple[int, StepId, str]:
        """Time, step and words of a record."""
        if isinstance(record, Turn):
            self._now_ns = record.now_ns
            came = [self._came(event) for event in record.events]
            decided = [self._decided(each) for each in record.instructions]
            arrow = " → " if decided else ""
            return self._now_ns, self._step, " | ".join(came) + arrow + "; ".join(decided)
        if isinstance(record, Repeated):
            return self._repeated(record)
        if isinstance(record, Gap):
            return self._now_ns, self._step, f"GAP: {many(record.turns, 'turn')} lost ({record.reason})"
        if isinstance(record, Prompt):
            return self._now_ns, self._step, f"prompt of {record.request}: {many(len(record.tokens), 'token id')}"
        assert isinstance(record, Sampled)
        return self._now_ns, record.step, f"sampled {many(len(record.tokens), 'token id')}"

    def _repeated(self, record: Repeated) -> tuple[int, StepId, str]:
        times = record.done_ns()
        start_ns, self._now_ns = times[0], times[-1]
        count = len(times)
        self._step = record.step + count
        pages = len(record.growth) // 3
        took = seconds((self._now_ns - record.start_ns) // count)
        text = (
            f"{many(count, 'step')} {record.step} to {record.step + count - 1} done, each repeated:"
            f" decode {self._members}, {took} a step on average, {many(pages, 'page')} added"
        )
        return start_ns, record.step, text

    def _came(self, event: Event) -> str:
        if isinstance(event, StepDone):
            self._step = event.step
            ended = f": {named(event.ended)} ended" if event.ended else ""
            return f"done {event.step}{ended}"
        if isinstance(event, Submitted):
            choice = f", a choice of {event.parent}'s prompt" if event.parent else ""
            return f"arrive {event.request} ({event.klass}, {many(event.prompt_tokens, 'token')}{choice})"
        if isinstance(event, StepFailed):
            lost = ", device lost" if event.device_lost else ""
            if not event.step:
                return f"DEVICE LOST between steps ({event.reason})"
            return f"STEP {event.step} FAILED ({event.reason}{lost}; blamed: {named(event.blamed) or 'nobody'})"
        if isinstance(event, Cancel):
            return f"cancel {event.request}"
        if isinstance(event, Stop):
            return f"stop string in {event.request}, keep {event.keep}"
        if isinstance(event, Timer):
            return "timer"
        if isinstance(event, UsePolicy):
            return f"use policy {event.name}" + (f" ({event.why})" if event.why else "")
        if isinstance(event, Pin):
            return f"{'pin' if event.on else 'unpin'} {many(len(event.keys), 'key')}"
        if isinstance(event, Pause):
            return ("pause" if event.on else "go on") + (f" ({event.why})" if event.why else "")
        if isinstance(event, ResetCache):
            return "reset the cache" + (f" ({event.why})" if event.why else "")
        return type(event).__name__.lower()

    def _decided(self, item: Instruction) -> str:
        if isinstance(item, Launch):
            return self._launch(item)
        if isinstance(item, Admitted):
            return f"admit {item.request}" + (f" ({item.cached} cached)" if item.cached else "")
        if isinstance(item, Finished):
            return f"finish {item.request} ({item.reason}, {many(item.tokens, 'token')})"
        if isinstance(item, Preempted):
            whom = f" for {item.beneficiary}" if item.beneficiary else ""
            return f"preempt {item.request}{whom} by {item.mode} ({item.reason}; {many(item.tokens, 'token')})"
        if isinstance(item, Resumed):
            return f"resume {item.request}"
        if isinstance(item, Blocked):
            return f"{item.request} blocked: {SHORT_OF[item.reason]} ({item.short} short)"
        if isinstance(item, Rejected):
            return f"reject {item.request} ({item.code}, limit {item.limit})"
        if isinstance(item, Wake):
            return f"wake at {item.at_ns / NS_PER_S:.6f} s"
        if isinstance(item, CacheReset):
            return f"forget {many(item.pages, 'page')}"
        if isinstance(item, PolicyFault):
            return f"POLICY FAULT in {item.policy}: {item.rule}: {item.detail}"
        return type(item).__name__.lower()

    def _launch(self, launch: Launch) -> str:
        self._step = launch.step
        self._members += len(launch.joined) - len(launch.left)
        parts = []
        if launch.decode:
            parts.append(f"decode {self._members}")
        for id, start, tokens, samples in launch.slices:
            parts.append(f"prefill {id} [{start}..{start + tokens})" + (" ●" if samples else ""))
        parts += [f"swap out {id} ({many(len(pages), 'page')})" for id, pages, _ in launch.swap_out]
        parts += [f"swap in {id} ({many(len(pages), 'page')})" for id, pages, _ in launch.swap_in]
        if launch.copies:
            parts.append(f"copy {many(len(launch.copies), 'page')}")
        return f"launch {launch.step}: {', '.join(parts)}"


def _names(record: Record, request: RequestId) -> bool:
    """Whether a record is about a request by name (a decode group's steps name nobody)."""
    if isinstance(record, Turn):
        return any(_about(item, request) for item in (*record.events, *record.instructions))
    return isinstance(record, Gap) or (isinstance(record, Prompt) and record.request == request)


def _about(item: Event | Instruction, request: RequestId) -> bool:
    if request in (getattr(item, "request", 0), getattr(item, "beneficiary", 0)):
        return True
    if isinstance(item, StepDone):
        return request in item.ended
    if isinstance(item, StepFailed):
        return request in item.blamed
    if isinstance(item, Launch):
        rows = (*item.slices, *item.tables, *item.swap_out, *item.swap_in)
        return request in item.joined or request in item.left or any(row[0] == request for row in rows)
    return False
