"""The decision journal: every batch of events and every instruction it led to, as lines of JSON.

A *segment* is a header line and record lines.  A record is an array: a turn ``[now_ns, events, instructions]``, or a
tagged one (below).  Everything that a decision depended on is in it, so that a scheduler built from the header and fed
the events gives the same instructions (``sim.replay``).

Steps that only repeat their predecessor (a quiet decode group) are run-length encoded, ``RUN_STEPS`` to a record at
most.  A shell that reports them one by one and one that takes many at once write the same bytes.

At level ``decisions`` there is no text and no token id in a journal; ``tokens`` adds prompts and sampled tokens.
This module is pure: it makes and reads bytes; ``core.journal_file`` keeps the files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec

from stepwell.core.errors import UserError
from stepwell.core.events import Event, RunDone, StepDone
from stepwell.core.instructions import Instruction, Launch, Run
from stepwell.core.types import RequestId, StepId

FORMAT = 1
"""Version of the format; a reader refuses a newer one."""

RUN_STEPS = 64
"""Repeated steps in one record, at most: so many steps a crash may cost beside the line being written."""


class Header(msgspec.Struct, kw_only=True):
    """First line of a segment.  ``config`` is the resolved configuration, enough to build the scheduler again.

    ``snapshot`` is null in the first segment; in later ones, and after a gap, the state to start from.
    """

    stepwell_journal: int = FORMAT
    version: str
    shell: str
    digest: str
    policy: str
    options: dict[str, object]
    seed: int
    level: str = "decisions"
    segment: int = 0
    config: dict[str, object]
    snapshot: msgspec.Raw = msgspec.Raw(b"null")


class Turn(msgspec.Struct, array_like=True):
    """One call of ``Scheduler.handle``."""

    now_ns: int
    events: list[Event]
    instructions: list[Instruction]


class Repeated(msgspec.Struct, array_like=True, tag="repeat"):
    """Steps ``step``, ``step`` + 1, … were done, and each led to nothing but the launch of the next, a repeat.

    At depth 1 only: with more steps in flight, the one launched is not the next.

    ``start_ns`` is when ``step`` was launched; ``gaps_ns`` the time from each launch to that step's end, which is when
    the next was launched; ``elapsed_ns`` what the device reported, empty if that is the same; ``growth`` is flat:
    offset of the step, request, page, … of the launches.
    """

    step: StepId
    start_ns: int
    gaps_ns: list[int]
    elapsed_ns: list[int]
    growth: list[int]

    def done_ns(self) -> list[int]:
        """When each step was done."""
        now_ns = self.start_ns
        times = []
        for gap in self.gaps_ns:
            now_ns += gap
            times.append(now_ns)
        return times


class Prompt(msgspec.Struct, array_like=True, tag="prompt"):
    """Level ``tokens``: a request's prompt."""

    request: RequestId
    tokens: list[int]


class Sampled(msgspec.Struct, array_like=True, tag="sampled"):
    """Level ``tokens``: what a step sampled, as (request, token id)."""

    step: StepId
    tokens: list[tuple[RequestId, int]]


class Gap(msgspec.Struct, array_like=True, tag="gap"):
    """First record of a segment before which records were lost (a full disk): its snapshot is where to go on."""

    turns: int
    reason: str


Record = Turn | Repeated | Prompt | Sampled | Gap

_encoder = msgspec.json.Encoder()
_turns = msgspec.json.Decoder(Turn)
_tagged: msgspec.json.Decoder[Repeated | Prompt | Sampled | Gap] = msgspec.json.Decoder(
    Repeated | Prompt | Sampled | Gap
)
_headers = msgspec.json.Decoder(Header)


class JournalEncoder:
    """Collects records; ``take`` gives their bytes.  One encoder writes one journal, whatever its segments."""

    def __init__(self) -> None:
        self._records: list[object] = []
        self._launch_ns = 0
        self._run = Repeated(0, 0, [], [], [])
        self._run_differs = False
        self.turns = 0
        """Turns recorded so far."""

    def turn(self, now_ns: int, events: Sequence[Event], instructions: Sequence[Instruction]) -> None:
        """Record one call of ``Scheduler.handle``; repeats are held back until their run is complete."""
        self.turns += 1
        if len(events) == 1 and len(instructions) == 1:
            event, instruction = events[0], instructions[0]
            if type(event) is StepDone:
                if (
                    type(instruction) is Launch
                    and instruction.step == event.step + 1  # not so at depth 2 and 3
                    and not (event.ended or event.copy_ns)
                    and instruction.repeats()
                ):
                    self._repeat(event.step, now_ns, event.elapsed_ns, instruction.growth)
                    return
            elif type(event) is RunDone:
                assert type(instruction) is Run
                self._take_run(event, instruction)
                return
        if self._run.gaps_ns:
            self._end_run()
        self._records.append((now_ns, events, instructions))
        for instruction in instructions:
            if type(instruction) is Launch:
                self._launch_ns = now_ns

    def note(self, record: Prompt | Sampled | Gap) -> None:
        """Record something else, in order with the turns."""
        self._end_run()
        self._records.append(record)

    def take(self, *, flush: bool = False) -> bytes:
        """The lines recorded since the last call; ``flush`` ends a run that is being collected."""
        if flush:
            self._end_run()
        records, self._records = self._records, []
        return _encoder.encode_lines(records) if records else b""

    def _repeat(self, step: StepId, now_ns: int, elapsed_ns: int, growth: list[int]) -> None:
        run = self._run
        if not run.gaps_ns:
            run.step = step
            run.start_ns = self._launch_ns
        gap_ns = now_ns - self._launch_ns
        offset = len(run.gaps_ns)
        for index in range(0, len(growth), 2):
            run.growth += (offset, growth[index], growth[index + 1])
        run.gaps_ns.append(gap_ns)
        run.elapsed_ns.append(elapsed_ns)
        self._launch_ns = now_ns
        if gap_ns != elapsed_ns:
            self._run_differs = True
        if offset + 1 >= RUN_STEPS:
            self._end_run()

    def _take_run(self, event: RunDone, answer: Run) -> None:
        """Many repeats at once, cut into the same records as if they came one by one."""
        times, growth = event.done_ns, answer.growth
        taken = read = 0
        while taken < len(times):
            run = self._run
            have = len(run.gaps_ns)
            if not have:
                run.step = event.step + taken
                run.start_ns = self._launch_ns
            part = times[taken : taken + RUN_STEPS - have]
            gaps_ns = [later - sooner for sooner, later in pairwise((self._launch_ns, *part))]
            run.gaps_ns += gaps_ns
            run.elapsed_ns += gaps_ns
            self._launch_ns = part[-1]
            shift = have - taken
            taken += len(part)
            while read < len(growth) and growth[read] < taken:
                run.growth += (growth[read] + shift, growth[read + 1], growth[read + 2])
                read += 3
            if have + len(part) >= RUN_STEPS:
                self._end_run()

    def _end_run(self) -> None:
        run = self._run
        if run.gaps_ns:
            if not self._run_differs:
                run.elapsed_ns = []
            self._records.append(run)
            self._run = Repeated(0, 0, [], [], [])
            self._run_differs = False


def encode_header(header: Header) -> bytes:
    """The header as a line."""
    return _encoder.encode(header) + b"\n"


def decode_header(line: bytes, *, name: str) -> Header:
    """Read a segment's first line; raises ``UserError`` naming ``name`` if it is none, or from a newer version."""
    try:
        header = _headers.decode(line)
    except msgspec.DecodeError as error:
        raise UserError(f"{name} is not a Stepwell journal: its first line is no header ({error})") from None
    if header.stepwell_journal > FORMAT:
        raise UserError(
            f"{name} has journal format {header.stepwell_journal}; this version reads up to {FORMAT}. Update Stepwell."
        )
    return header


def decode_record(line: bytes) -> Record:
    """Read one record line; raises ``msgspec.DecodeError`` if it is malformed."""
    if line[1:2] == b'"':
        return _tagged.decode(line)
    return _turns.decode(line)


def decode_records(lines: Iterator[bytes], *, name: str, first_line: int = 2) -> Iterator[Record]:
    """Read record lines.  A torn last line (a crash while writing) ends the journal; any other bad line is an error.

    Raises ``UserError`` naming file and line.
    """
    number = first_line - 1
    for line in lines:
        number += 1
        try:
            record = decode_record(line)
        except msgspec.DecodeError as error:
            if not line.endswith(b"\n"):
                return
            raise UserError(f"{name}, line {number}: not a journal record ({error})") from None
        yield record
