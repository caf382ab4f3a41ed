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

from itertools import groupby, pairwise

import msgspec

from stepwell.core.types import NS_PER_MS, NS_PER_S
from stepwell.sim.workload.rows import MOST_NS, Format, Row, RowError, RowParser, program_name, shown, token_count

BLOCK_TOKENS = 512
WIDEST_BUCKET_NS = 3 * NS_PER_S
COLUMNS = ("timestamp", "input_length", "output_length")


def parse_line(line: str) -> Row:
    try:
        found: object = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RowError(f"not a JSON object: {error}") from None
    if not isinstance(found, dict):
        raise RowError(f"must be a JSON object, not {shown(found)}")
    for column in COLUMNS:
        if column not in found:
            raise RowError(f"column {column!r} is missing")
    stamp = found["timestamp"]
    if type(stamp) is not int or not 0 <= stamp <= MOST_NS // NS_PER_MS:
        raise RowError(f"timestamp must be a whole, non-negative number of milliseconds, not {shown(stamp)}")
    prompt = token_count(found["input_length"], "input_length")
    output = token_count(found["output_length"], "output_length")
    program = program_name(found["session_id"], "session_id") if found.get("session_id") is not None else ""
    return Row(stamp * NS_PER_MS, prompt, output, _keys(found.get("hash_ids", []), prompt), program)


def _keys(ids: object, prompt_tokens: int) -> list[int]:
    if not isinstance(ids, list):
        raise RowError(f"hash_ids must be a list, not {shown(ids)}")
    if not ids:
        return []
    for key in ids:
        if type(key) is not int or key < 0:
            raise RowError(f"hash_ids must be whole, non-negative numbers, not {shown(key)}")
    blocks = -(-prompt_tokens // BLOCK_TOKENS)
    if len(ids) != blocks:
        raise RowError(
            f"{len(ids)} hash_ids for input_length {prompt_tokens}, which has {blocks} blocks of {BLOCK_TOKENS}"
        )
    return ids


def bucket_width_ns(times_ns: list[int]) -> int:
    """The smallest distance between distinct times, at most ``WIDEST_BUCKET_NS``; ``times_ns`` ascend."""
    distinct = [time for time, _ in groupby(times_ns)]
    gaps = [after - before for before, after in pairwise(distinct)]
    return min([*gaps, WIDEST_BUCKET_NS])


def debucketed(times_ns: list[int], width_ns: int) -> list[int]:
    """Ascending times with equal ones spread evenly over ``width_ns``."""
    spread: list[int] = []
    for time_ns, group in groupby(times_ns):
        count = sum(1 for _ in group)
        spread += [time_ns + index * width_ns // count for index in range(count)]
    return spread


def _open(first: str) -> RowParser:
    return parse_line


def _recognises(first: str) -> bool:
    return first.lstrip().startswith("{") and any(f'"{column}"' in first for column in COLUMNS)


MOONCAKE = Format(
    name="mooncake",
    looks='{"timestamp": ms, "input_length": …, "output_length": …, "hash_ids": […]}',
    recognises=_recognises,
    open=_open,
    header=False,
    key_tokens=BLOCK_TOKENS,
    debucket=True,
)
