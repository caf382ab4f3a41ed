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


def by_columns(header: str, columns: tuple[str, str, str], session: str, session_at: int) -> RowParser:
    """Reads rows whose ``columns`` are seconds, prompt tokens and output tokens, and whose program stands in the column
    named ``session`` (``session_at`` below 0: none)."""
    (time_at, prompt_at, output_at), count = positions(header, columns)

    def parse(line: str) -> TraceRequest:
        parts = fields(line, count)
        program = parts[session_at].strip() if session_at >= 0 else ""
        return TraceRequest(
            seconds(parts[time_at], columns[0]),
            tokens(parts[prompt_at], columns[1]),
            tokens(parts[output_at], columns[2]),
            program=program_name(program, session) if program else "",
        )

    return parse


def _open(header: str) -> RowParser:
    named = columns_of(header)
    return by_columns(header, COLUMNS, SESSION, named.index(SESSION) if SESSION in named else -1)


def _recognises(first: str) -> bool:
    return not set(columns_of(first)).isdisjoint(COLUMNS)


SIMPLE = line_format("simple", ",".join(COLUMNS), _recognises, _open)
