"""Qwen-Bailian's traces (ATC'25): JSON lines with ``chat_id``, ``parent_chat_id``, ``timestamp`` (s) and lengths.

``hash_ids`` name blocks of 16 prompt tokens together with everything before them; a last block that is not full may
have one or not.  A chat's turns have different ids, tied by ``parent_chat_id`` (-1: the first turn); all of them are
one program, named by the id of the first turn in the file.
"""

from __future__ import annotations

from stepwell.sim.workload.reading import RowParser, line_format
from stepwell.sim.workload.request import TraceRequest
from stepwell.sim.workload.rows import JsonNumber, RowError, hash_ids, json_row, seconds, shown, token_count

BLOCK_TOKENS = 16
COLUMNS = ("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length")


def _open(first: str) -> RowParser:
    roots: dict[int, int] = {}
    """The first turn of each turn's chat."""

    def parse(line: str) -> TraceRequest:
        found = json_row(line, COLUMNS)
        chat, parent = _id(found["chat_id"], "chat_id", 0), _id(found["parent_chat_id"], "parent_chat_id", -1)
        stamp = found["timestamp"]
        if type(stamp) is not int and not isinstance(stamp, JsonNumber):
            raise RowError(f"timestamp must be a non-negative number of seconds, not {shown(stamp)}")
        arrival_ns = seconds(str(stamp), "timestamp")
        prompt = token_count(found["input_length"], "input_length")
        output = token_count(found["output_length"], "output_length")
        keys = hash_ids(found.get("hash_ids", []), prompt, BLOCK_TOKENS, partial=False)
        root = chat if parent < 0 else roots.get(parent, parent)
        roots[chat] = root
        return TraceRequest(arrival_ns, prompt, output, keys=keys, program=str(root))

    return parse


def _id(value: object, column: str, least: int) -> int:
    if type(value) is not int or value < least:
        raise RowError(f"{column} must be a whole number from {least}, not {shown(value)}")
    return value


def _recognises(first: str) -> bool:
    return first.lstrip().startswith("{") and '"chat_id"' in first and '"input_length"' in first


QWEN = line_format(
    "qwen",
    '{"chat_id": …, "parent_chat_id": …, "timestamp": s, "input_length": …, "output_length": …, "hash_ids": […]}',
    _recognises,
    _open,
    header=False,
    key_tokens=BLOCK_TOKENS,
)
