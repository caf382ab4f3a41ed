"""The plainest format: ``arrived_at,num_prefill_tokens,num_decode_tokens``, seconds and tokens (Vidur's column names).

Further columns are ignored.  Times are decimal numbers of seconds, kept to the nanosecond and counted as the file
counts them: the first arrival need not be at 0.
"""

from __future__ import annotations

from stepwell.sim.workload.rows import Format, Row, RowParser, columns_of, fields, positions, seconds, tokens

COLUMNS = ("arrived_at", "num_prefill_tokens", "num_decode_tokens")


def _open(header: str) -> RowParser:
    (time_at, prompt_at, output_at), count = positions(header, COLUMNS)

    def parse(line: str) -> Row:
        parts = fields(line, count)
        return Row(
            seconds(parts[time_at], COLUMNS[0]),
            tokens(parts[prompt_at], COLUMNS[1]),
            tokens(parts[output_at], COLUMNS[2]),
        )

    return parse


def _recognises(first: str) -> bool:
    return not set(columns_of(first)).isdisjoint(COLUMNS)


SIMPLE = Format(name="simple", looks=",".join(COLUMNS), recognises=_recognises, open=_open)
