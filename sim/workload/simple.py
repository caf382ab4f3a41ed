"""The plainest format: ``arrived_at,num_prefill_tokens,num_decode_tokens``, seconds and tokens (Vidur's column names).

A column ``session_id``, if there is one, names the program (blank: none); further columns are ignored.  Times are
decimal numbers of seconds, kept to the nanosecond and counted as the file counts them: the first arrival need not be
at 0.
"""

from __future__ import annotations

from stepwell.sim.workload.reading import RowParser, line_format
from stepwell.sim.workload.request import TraceRequest
from stepwell.sim.workload.rows import columns_of, fields, positions, program_name, seconds, tokens

COLUMNS = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")
SESSION = "session_id"


def _open(header: str) -> RowParser:
    (time_at, prompt_at, output_at), count = positions(header, COLUMNS)

    named = columns_of(header)
    session_at = named.index(SESSION) if SESSION in named else -1

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
    return not set(columns_of(first)).isdisjoint(COLUMNS)


SIMPLE = line_format("simple", ",".join(COLUMNS), _recognises, _open)
