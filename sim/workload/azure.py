"""Azure's LLM inference traces: ``TIMESTAMP,ContextTokens,GeneratedTokens``, lines ending CRLF, no final newline.

The traces of 2023 stamp with seven fractional digits (``2023-11-16 18:15:46.6805900``, units of 100 ns), those of 2024
with six or none and a time zone (``2024-05-10 00:00:00.009930+00:00``).  Both are read with integers only.  A stamp is
an ISO 8601 date and time with a blank or ``T`` between them, up to nine fractional digits, and optionally ``Z`` or an
offset.  Stamps without a zone count as UTC, which is right whatever zone they were written in, unless its clocks were
changed meanwhile; stamps with and without a zone in one file do not compare and are refused.  Dates in local notation
(``11/16/2023 6:15 PM``) are refused.
"""

from __future__ import annotations

import datetime
import re

from stepwell.core.types import NS_PER_S
from stepwell.sim.workload.reading import RowParser, line_format
from stepwell.sim.workload.request import TraceRequest
from stepwell.sim.workload.rows import RowError, columns_of, fields, positions, shown, tokens

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

_STAMP = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:(Z)|([+-])(\d\d):?(\d\d))?",
    re.ASCII,
)


def parse_stamp(text: str) -> tuple[int, bool]:
    """Nanoseconds since 0001-01-01 UTC, and whether the stamp names its zone."""
    text = text.strip()
    if not text:
        raise RowError("TIMESTAMP is blank")
    match = _STAMP.fullmatch(text)
    if match is None:
        raise RowError(f"TIMESTAMP must look like 2023-11-16 18:15:46.6805900, not {shown(text)}")
    date, hour, minute, second, fraction, utc, sign, zone_hours, zone_minutes = match.groups()
    try:
        day = datetime.date.fromisoformat(date).toordinal()
    except ValueError as error:
        raise RowError(f"TIMESTAMP {text!r}: {error}") from None
    hours, minutes, whole = int(hour), int(minute), int(second)
    if hours > 23 or minutes > 59 or whole > 59:
        raise RowError(f"TIMESTAMP {text!r} is no time of day")
    total_s = ((day * 24 + hours) * 60 + minutes) * 60 + whole
    if sign:
        offset_s = int(zone_hours) * 3600 + int(zone_minutes) * 60
        total_s -= offset_s if sign == "+" else -offset_s
    return total_s * NS_PER_S + int((fraction or "").ljust(9, "0")), bool(utc or sign)


def _open(header: str) -> RowParser:
    (time_at, prompt_at, output_at), count = positions(header, COLUMNS)
    zones: set[bool] = set()

    def parse(line: str) -> TraceRequest:
        parts = fields(line, count)
        time_ns, zoned = parse_stamp(parts[time_at])
        row = TraceRequest(time_ns, tokens(parts[prompt_at], COLUMNS[1]), tokens(parts[output_at], COLUMNS[2]))
        if (not zoned) in zones:
            raise RowError(f"TIMESTAMP {'names' if zoned else 'lacks'} a time zone, unlike those before it")
        zones.add(zoned)
        return row

    return parse


def _recognises(first: str) -> bool:
    return not set(columns_of(first)).isdisjoint(COLUMNS)


AZURE = line_format("azure", ",".join(COLUMNS), _recognises, _open, from_zero=True)
