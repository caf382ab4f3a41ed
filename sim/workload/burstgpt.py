"""BurstGPT: ``Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type``, seconds since the trace began.

Later files have ``Session ID`` and ``Elapsed time`` after the time stamp: the session names the program (blank: none),
how long it took on the recorded service is of no use here.  A failed request is one of 0 response tokens, and dropped.
Columns may stand in any order; the model, the total and the log type are not looked at.
"""

from __future__ import annotations

from stepwell.sim.workload.reading import RowParser, line_format
from stepwell.sim.workload.request import TraceRequest
from stepwell.sim.workload.rows import columns_of, fields, positions, program_name, seconds, tokens

COLUMNS = ("Timestamp", "Request tokens", "Response tokens")
SESSION = "Session ID"


def _open(header: str) -> RowParser:
    (time_at, prompt_at, output_at), count = positions(header, COLUMNS)
    named = columns_of(header)
    session_at = positions(header, (SESSION,))[0][0] if SESSION in named else -1

    def parse(line: str) -> TraceRequest:
        parts = fields(line, count)
        session = parts[session_at].strip() if session_at >= 0 else ""
        return TraceRequest(
            seconds(parts[time_at], COLUMNS[0]),
            tokens(parts[prompt_at], COLUMNS[1]),
            tokens(parts[output_at], COLUMNS[2]),
            program=program_name(session, SESSION) if session else "",
        )

    return parse


def _recognises(first: str) -> bool:
    return not set(columns_of(first)).isdisjoint(COLUMNS[1:])


BURSTGPT = line_format(
    "burstgpt",
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
    _recognises,
    _open,
    unanswered="no response tokens: the request failed",
)
