"""BurstGPT: ``Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type``, seconds since the trace began.

Later files have ``Session ID`` and ``Elapsed time`` after the time stamp: the session names the program (blank: none),
how long it took on the recorded service is of no use here.  A failed request is one of 0 response tokens, and dropped.
Columns may stand in any order; the model, the total and the log type are not looked at.
"""

from __future__ import annotations

from stepwell.sim.workload.reading import RowParser, line_format
from stepwell.sim.workload.rows import columns_of, positions
from stepwell.sim.workload.simple import by_columns

COLUMNS = ("Timestamp", "Request tokens", "Response tokens")
SESSION = "Session ID"


def _open(header: str) -> RowParser:
    named = columns_of(header)
    return by_columns(header, COLUMNS, SESSION, positions(header, (SESSION,))[0][0] if SESSION in named else -1)


def _recognises(first: str) -> bool:
    return not set(columns_of(first)).isdisjoint(COLUMNS[1:])


BURSTGPT = line_format(
    "burstgpt",
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
    _recognises,
    _open,
    unanswered="no response tokens: the request failed",
)
