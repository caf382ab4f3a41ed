"""The decision journal: every batch of events and every instruction it led to, as lines of JSON.

A *segment* is a header line and record lines.  A record is an array: a turn ``[now_ns, events, instructions]``, or a
tagged one (below).  Everything that a decision depended on is in it, so that a scheduler built from the header and fed
the events gives the same instructions (``sim.replay``).

Steps that only repeat their predecessor (a quiet decode group) are run-length encoded, ``RUN_STEPS`` to a record at
most.  A shell that reports them one by one and one that takes many at once write the same bytes.

At level ``decisions`` there is no text and no token id in a journal; ``tokens`` adds prompts and sampled tokens.
This module names and reads the records, ``core.journal_encoder`` makes them of turns, ``core.journal_file`` keeps the
files.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from stepwell.core.errors import UserError
from stepwell.core.events import Event
from stepwell.core.instructions import Instruction
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
