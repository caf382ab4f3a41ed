"""A journal as a timeline that Perfetto and chrome://tracing open: Chrome's trace events, as JSON.

One process; in it the track ``steps`` (complete events, one a step), the track ``decisions`` (instants), counters, and
one nestable async track a request: an instant when it arrives, a slice from arrival to end, and in that its phases one
after another (``sim.phases``).  Times are microseconds with the nanoseconds behind the point.

Everything is written as it is read: memory holds the requests alive and the steps in flight, whatever the length.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from stepwell.core.events import Event, Pause, Submitted, UsePolicy
from stepwell.core.instructions import (
    Blocked,
    Finished,
    Instruction,
    PolicyFault,
    Preempted,
    Rejected,
)
from stepwell.core.snapshot import SchedulerSnapshot
from stepwell.core.types import FOREVER, NS_PER_MS, NS_PER_S, RequestId
from stepwell.sim.pages import PagesInUse
from stepwell.sim.phases import GONE, ON_DEVICE, PREEMPTED, QUEUED, SWAPPED_OUT, Phases
from stepwell.sim.step_spans import StepSpan, StepSpans

Write = Callable[[dict[str, Any]], None]
"""Takes one trace event."""

STEPS, DECISIONS = 1, 2
"""Tracks of the process."""

TOKENS = "tokens in the step"
_STOPPED = {"stopped": "the timeline ends here"}


class Timeline:
    """One stretch of a journal, from ``from_ns`` to ``to_ns``.

    Feed it every turn through ``observe``, steps one by one, and call ``end`` once.
    """

    def __init__(self, write: Write, *, from_ns: int = 0, to_ns: int = FOREVER, process: int = 1) -> None:
        self._write = write
        self._from_ns, self._to_ns = from_ns, to_ns
        self._process = process
        self._open = False
        """Whether the time has come from which on everything is written."""
        self._idle_ns = from_ns
        """When the last step ended."""
        self._phases = Phases(self._phase)
        self._steps = StepSpans(self._step)
        self._about: dict[RequestId, dict[str, Any]] = {}
        self._shown: dict[RequestId, str] = {}
        """Requests with a slice, and the phase that is open in it."""
        self._pages = PagesInUse()
        self._counted: dict[str, int] = {}

    # ------------------------------------------------------------------------------------------- turns

    def begin(self, snapshot: SchedulerSnapshot, pages: int) -> None:
        """Start in the middle of things, with ``pages`` in use."""
        for each in snapshot.requests:
            self._about[each.id] = _about(
                each.klass, each.tenant, each.prompt_tokens, each.priority, each.program, each.parent
            )
            self._about[each.id]["arrived_s"] = each.arrival_ns / NS_PER_S
        self._pages.used = pages
        self._advance(snapshot.now_ns)
        self._phases.begin(snapshot)
        self._steps.begin(snapshot)
        self._count(snapshot.now_ns)

    def observe(self, now_ns: int, events: Sequence[Event], instructions: Sequence[Instruction]) -> None:
        """Take in one turn."""
        self._advance(now_ns)
        for event in events:
            if isinstance(event, Submitted):
                self._about[event.request] = _about(
                    event.klass, event.tenant, event.prompt_tokens, event.priority, event.program, event.parent
                )
            elif isinstance(event, UsePolicy):
                self._decided(now_ns, "policy", {"name": event.name, "why": event.why})
            elif isinstance(event, Pause):
                self._decided(now_ns, "pause" if event.on else "go on", {"why": event.why})
        self._steps.observe(now_ns, events, instructions)
        self._phases.observe(now_ns, events, instructions)
        self._pages.observe(now_ns, events, instructions)
        for item in instructions:
            self._instruction(now_ns, item)
        self._count(now_ns)

    def end(self, now_ns: int) -> None:
        """Close what is open: the journal, or the window, ends."""
        now_ns = min(max(now_ns, self._from_ns), self._to_ns)
        self._advance(now_ns)
        for id in list(self._shown):
            self._close(now_ns, id, _STOPPED)
        self._counter(TOKENS, self._idle_ns, 0)

    def lost(self, now_ns: int, args: dict[str, Any]) -> None:
        """Records are missing before this stretch."""
        self._decided(now_ns, "records lost", args)

    def _advance(self, now_ns: int) -> None:
        if not self._open and now_ns >= self._from_ns:
            self._open = True
            for id, phase in self._phases.now.items():
                self._show(self._from_ns, id, phase)
            self._count(self._from_ns)

    # ------------------------------------------------------------------------------------------- requests

    def _phase(self, now_ns: int, id: RequestId, phase: str) -> None:
        if self._open:
            if phase == GONE:
                return  # ``_instruction`` knows why it ended
            if id not in self._shown:
                self._show(now_ns, id, phase)
            else:
                self._put("e", now_ns, id, self._shown[id])
                self._put("b", now_ns, id, phase)
                self._shown[id] = phase
        elif phase == GONE:
            self._about.pop(id, None)

    def _show(self, now_ns: int, id: RequestId, phase: str) -> None:
        """The first event gives the track its name: one a class, so that a viewer can pack its requests together."""
        about = self._about[id]
        self._put("n", now_ns, id, about["class"])
        self._put("b", now_ns, id, f"request {id}", about)
        self._put("b", now_ns, id, phase)
        self._shown[id] = phase

    def _close(self, now_ns: int, id: RequestId, args: dict[str, Any]) -> None:
        phase = self._shown.pop(id, None)
        if phase is not None:
            self._put("e", now_ns, id, phase)
            self._put("e", now_ns, id, f"request {id}", args)
        self._about.pop(id, None)

    def _put(self, kind: str, now_ns: int, id: RequestId, name: str, args: dict[str, Any] | None = None) -> None:
        event = {"ph": kind, "cat": "request", "id": id, "name": name, "ts": micros(now_ns), "pid": self._process}
        if args:
            event["args"] = args
        self._write(event)

    # ------------------------------------------------------------------------------------------- steps, decisions

    def _step(self, span: StepSpan) -> None:
        if not self._open or span.end_ns <= self._from_ns or span.start_ns >= self._to_ns:
            return
        shape = span.shape
        args: dict[str, Any] = {
            "step": span.step,
            "prefill_tokens": shape.prefill_tokens,
            "prefill_requests": shape.prefill_requests,
            "decode_requests": shape.decode_requests,
            "kv_tokens": shape.kv_tokens,
            "device_ms": span.device_ns / NS_PER_MS,
        }
        if shape.swap_pages:
            args |= {"swap_pages": shape.swap_pages, "copy_ms": span.copy_ns / NS_PER_MS}
        if shape.copied_pages:
            args["copied_pages"] = shape.copied_pages
        if span.failed:
            args["failed"] = span.failed
        self._write(
            {
                "ph": "X",
                "cat": "step",
                "name": _kind(span),
                "ts": micros(span.start_ns),
                "dur": micros(span.end_ns - span.start_ns),
                "pid": self._process,
                "tid": STEPS,
                "args": args,
            }
        )
        if span.start_ns > self._idle_ns:
            self._counter(TOKENS, self._idle_ns, 0)
        self._counter(TOKENS, span.start_ns, span.tokens)
        self._idle_ns = span.end_ns

    def _instruction(self, now_ns: int, item: Instruction) -> None:
        if isinstance(item, Finished):
            self._close(now_ns, item.request, {"reason": item.reason, "output_tokens": item.tokens, "why": item.why})
        elif isinstance(item, Rejected):
            self._close(now_ns, item.request, {"reason": "rejected", "code": item.code, "limit": item.limit})
            self._decided(now_ns, "rejected", {"request": item.request, "code": item.code, "limit": item.limit})
        elif isinstance(item, Preempted):
            args = {field: getattr(item, field) for field in item.__struct_fields__}
            self._decided(now_ns, "preempted", args)
            if self._open:
                self._put("n", now_ns, item.request, f"preempted by {item.mode}", args)
        elif isinstance(item, Blocked):
            args = {"request": item.request, "reason": item.reason, "short": item.short}
            self._decided(now_ns, f"blocked: {item.reason}", args)
        elif isinstance(item, PolicyFault):
            self._decided(now_ns, "broken rule", {"policy": item.policy, "rule": item.rule, "detail": item.detail})

    def _decided(self, now_ns: int, name: str, args: dict[str, Any]) -> None:
        if self._open:
            instant = {"ph": "i", "s": "t", "cat": "decision", "name": name, "ts": micros(now_ns), "args": args}
            self._write(instant | {"pid": self._process, "tid": DECISIONS})

    # ------------------------------------------------------------------------------------------- counters

    def _count(self, now_ns: int) -> None:
        counts = self._phases.counts
        self._counter("requests waiting", now_ns, counts[QUEUED] + counts[PREEMPTED])
        self._counter("requests running", now_ns, sum(counts[each] for each in ON_DEVICE))
        self._counter("requests swapped out", now_ns, counts[SWAPPED_OUT])
        self._counter("KV pages in use", now_ns, self._pages.used)

    def _counter(self, name: str, now_ns: int, value: int) -> None:
        if self._open and self._counted.get(name) != value:
            self._counted[name] = value
            event = {"ph": "C", "name": name, "ts": micros(now_ns), "pid": self._process, "args": {"value": value}}
            self._write(event)


def micros(at_ns: int) -> msgspec.Raw:
    """Nanoseconds as a JSON number of microseconds, none of them lost."""
    whole, rest = divmod(at_ns, 1000)
    return msgspec.Raw(f"{whole}.{rest:03d}".encode() if rest else str(whole).encode())


def _about(
    klass: str, tenant: str, prompt_tokens: int, priority: int, program: str, parent: RequestId
) -> dict[str, Any]:
    told = {"class": klass, "tenant": tenant, "prompt_tokens": prompt_tokens}
    more = {"priority": priority, "program": program, "parent": parent}
    return told | {key: value for key, value in more.items() if value}


def _kind(span: StepSpan) -> str:
    """The step's name: viewers colour by it."""
    shape = span.shape
    if span.failed:
        return "failed"
    if shape.prefill_tokens:
        return "prefill + decode" if shape.decode_requests else "prefill"
    return "decode" if shape.decode_requests else "copies"
