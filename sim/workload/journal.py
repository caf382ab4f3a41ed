"""A decision journal as a workload: the requests that came, so that they can be served again in another way.

Everything that a client brought is taken as it was recorded: arrival, prompt length, page keys, class, tenant,
priority, program, ``max_tokens``, deadline, parent (``n`` above 1).  How long an answer really is, the journal knows
from its end:

- ``stop``: what it had (a stop string found later than its last token: what was kept, at least one token);
- ``length``: it would have gone on, so one token more than it was allowed;
- ``cancelled`` after some tokens: its client leaves after as many (``cancel_tokens``);
- ``cancelled`` before any: its client leaves as long after its arrival as it did (``cancel_ns``);
- refused, rejected, expired, failed, or not ended when the journal did: **unknown**.

An unknown length is that of the last request of its class before it whose length is known (of any class if there is
none, the first one after it if there is none before), and counted in a note.  So the unknown ones, who are most often
those of the worst hour, are spread as the others of that hour are.

Left out: requests that were there when the journal begins (they stand in its first snapshot, half served), and those
that came while it could not be written (a gap).  A request refused for want of its class is dropped.  Keys are left as
they are, so pages of the recorded size share what they shared; those of an answer let later prompts find it.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from stepwell.core.events import Cancel, Pin, StepDone, StepFailed, Stop, Submitted
from stepwell.core.instructions import Finished, Rejected
from stepwell.core.journal import Gap, Turn
from stepwell.core.registry import make_allocator
from stepwell.core.types import FOREVER, RequestId
from stepwell.sim.journal_read import Stretch, config_of, extent, stretches, where_it_begins
from stepwell.sim.workload.reading import Format, Intake, Reading
from stepwell.sim.workload.request import TraceRequest, Workload


class _Known(msgspec.Struct):
    """What the journal tells of a request."""

    submitted: Submitted
    arrival_ns: int
    end: Finished | None = None
    end_ns: int = 0
    rejected: str = ""
    answer_keys: tuple[int, ...] = ()


class _Recorded(msgspec.Struct):
    requests: dict[RequestId, _Known] = {}
    gaps: int = 0
    pins: int = 0
    failures: int = 0


def read_journal_workload(path: str | os.PathLike[str]) -> Workload:
    """The requests of the journal that begins at ``path``.  Raises ``UserError`` if there is none, or no request."""
    return _read(Path(path), JOURNAL, Reading())


def read_identified(path: str | os.PathLike[str]) -> tuple[Workload, list[RequestId]]:
    """The same, and the ids that the journal knows them by, in the order of the workload."""
    return _read_both(Path(path), JOURNAL, Reading())


def _read(path: Path, format: Format, reading: Reading) -> Workload:
    return _read_both(path, format, reading)[0]


def _read_both(path: Path, format: Format, reading: Reading) -> tuple[Workload, list[RequestId]]:
    parts = stretches(path)
    recorded = _recorded(parts)
    intake = Intake(path, reading.skip_bad, unit="request")
    lengths = _Lengths(recorded.requests)
    places: dict[RequestId, int] = {}
    for id, known in recorded.requests.items():
        if known.rejected == "unknown_class":
            intake.drop(id, f"class {known.submitted.klass!r} was not defined")
            continue
        intake.add(id, _request(known, lengths, places))
        if len(intake.requests) > len(places):
            places[id] = len(intake.requests)
    keyed = any(known.submitted.keys for known in recorded.requests.values())
    config = config_of(parts[-1].header, str(path))
    workload = intake.workload(format, reading, notes=_notes(path, parts, recorded, lengths))
    key_tokens = make_allocator(config.memory).key_tokens if keyed else 0
    return msgspec.structs.replace(workload, key_tokens=key_tokens), list(places)


def _recorded(parts: list[Stretch]) -> _Recorded:
    found = _Recorded()
    requests = found.requests
    for part in parts:
        for record in part.records():
            if isinstance(record, Gap):
                found.gaps += 1
            if not isinstance(record, Turn):
                continue  # steps that only repeat: nobody came or went
            for event in record.events:
                if isinstance(event, Submitted):
                    requests[event.request] = _Known(event, record.now_ns)
                elif isinstance(event, StepDone):
                    for id, keys in event.keys:
                        if id in requests:
                            requests[id].answer_keys = tuple(keys)
                elif isinstance(event, Cancel | Stop):
                    if event.keys and event.request in requests:
                        requests[event.request].answer_keys = tuple(event.keys)
                else:
                    found.pins += isinstance(event, Pin)
                    found.failures += isinstance(event, StepFailed)
            for instruction in record.instructions:
                if isinstance(instruction, Finished) and instruction.request in requests:
                    known = requests[instruction.request]
                    known.end, known.end_ns = instruction, record.now_ns
                elif isinstance(instruction, Rejected) and instruction.request in requests:
                    requests[instruction.request].rejected = instruction.code
    return found


class _Lengths:
    """True output lengths: those that the journal knows, and the nearest known one for all others."""

    def __init__(self, requests: dict[RequestId, _Known]) -> None:
        self.unknown = 0
        self._last: dict[str, int] = {}
        for known in requests.values():
            length = self._of_end(known)
            if length:
                self._last.setdefault(known.submitted.klass, length)
                self._last.setdefault("", length)

    def of(self, known: _Known) -> int:
        """Asked of each request once, in order of arrival."""
        length = self._of_end(known)
        klass = known.submitted.klass
        if length:
            self._last[klass] = self._last[""] = length
            return length
        end = known.end
        if end is not None and end.reason == "cancelled" and end.tokens:
            return end.tokens + 1
        self.unknown += 1
        had = end.tokens if end is not None else 0
        return max(had + 1, self._last.get(klass, self._last.get("", known.submitted.max_tokens)))

    def _of_end(self, known: _Known) -> int:
        """0 if its end does not tell."""
        end = known.end
        if end is None or end.reason not in ("stop", "length"):
            return 0
        return max(end.tokens, 1) + (end.reason == "length")


def _request(known: _Known, lengths: _Lengths, places: dict[RequestId, int]) -> TraceRequest:
    submitted, end = known.submitted, known.end
    left = end is not None and end.reason == "cancelled"
    return TraceRequest(
        known.arrival_ns,
        submitted.prompt_tokens,
        lengths.of(known),
        submitted.klass,
        submitted.tenant,
        submitted.keys,
        cancel_ns=known.end_ns if end is not None and left and not end.tokens else 0,
        priority=submitted.priority,
        program=submitted.program,
        max_tokens=submitted.max_tokens if submitted.max_tokens < FOREVER else 0,
        expires_ns=submitted.expires_ns,
        cancel_tokens=end.tokens if end is not None and left else 0,
        parent=places.get(submitted.parent, 0),
        answer_keys=known.answer_keys,
    )


def _notes(path: Path, parts: list[Stretch], recorded: _Recorded, lengths: _Lengths) -> list[str]:
    requests = recorded.requests
    told = where_it_begins(extent(path, parts), min(requests, default=0), max(requests, default=0))
    if lengths.unknown:
        told.append(
            f"{lengths.unknown} of {len(requests)} requests did not end by themselves: their true output lengths are"
            " unknown, each is taken to be that of the one of its class before it"
        )
    for count, what in (
        (recorded.gaps, "gaps: requests that came in them are missing"),
        (recorded.failures, "failed steps are not played again"),
        (recorded.pins, "pins of prefixes are not played again"),
    ):
        if count:
            told.append(f"{count} {what}")
    return told


def _recognises(first: str) -> bool:
    return first.startswith('{"stepwell_journal"')


JOURNAL = Format("journal", '{"stepwell_journal":1, …', _recognises, _read)
