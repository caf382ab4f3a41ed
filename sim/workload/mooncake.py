"""Mooncake's traces (FAST'25): JSON lines with ``timestamp`` (ms), ``input_length``, ``output_length``, ``hash_ids``.

A hash id names a block of 512 prompt tokens together with everything before it, so equal ids mean an equal prefix; the
last block may be partly filled.  Each row must have ``ceil(input_length / 512)`` of them, or none at all.
``session_id``, which tools add that replay such traces, names the program; the published ones have none.

The conversation trace was stamped every 3 s or so: 12,031 rows share 1,180 stamps, up to 28 at a time.  Replayed as it
is, it makes bursts that never happened.  ``debucket`` spreads the n rows of one stamp evenly over the bucket that the
stamp begins: the k-th in file order (from 0) moves by ``k * width // n``.  The width is the smallest distance between
two stamps in the file, at most 3 s; so no row overtakes one of the next stamp, and in a trace stamped to the
millisecond none moves by a whole one.
"""

from __future__ import annotations

from stepwell.core.types import NS_PER_MS, NS_PER_S
from stepwell.sim.workload.reading import RowParser, line_format
from stepwell.sim.workload.request import TraceRequest
from stepwell.sim.workload.rows import MOST_NS, RowError, hash_ids, json_row, program_name, shown, token_count

BLOCK_TOKENS = 512
COLUMNS = ("timestamp", "input_length", "output_length")


def parse_line(line: str) -> TraceRequest:
    found = json_row(line, COLUMNS)
    stamp = found["timestamp"]
    if type(stamp) is not int or not 0 <= stamp <= MOST_NS // NS_PER_MS:
        raise RowError(f"timestamp must be a whole, non-negative number of milliseconds, not {shown(stamp)}")
    prompt = token_count(found["input_length"], "input_length")
    output = token_count(found["output_length"], "output_length")
    session = found.get("session_id")
    return TraceRequest(
        stamp * NS_PER_MS,
        prompt,
        output,
        keys=hash_ids(found.get("hash_ids", []), prompt, BLOCK_TOKENS, partial=True),
        program=program_name(session, "session_id") if session is not None else "",
    )


def _open(first: str) -> RowParser:
    return parse_line


def _recognises(first: str) -> bool:
    return first.lstrip().startswith("{") and any(f'"{column}"' in first for column in COLUMNS)


MOONCAKE = line_format(
    "mooncake",
    '{"timestamp": ms, "input_length": …, "output_length": …, "hash_ids": […]}',
    _recognises,
    _open,
    header=False,
    key_tokens=BLOCK_TOKENS,
    bucket_ns=3 * NS_PER_S,
)
