"""A strict reader of Chrome's trace events, from the rules of the format alone: viewers forgive more than it does."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

NEEDS = {
    "X": {"name", "cat", "ts", "dur", "pid", "tid"},
    "b": {"name", "cat", "id", "ts", "pid"},
    "n": {"name", "cat", "id", "ts", "pid"},
    "e": {"name", "cat", "id", "ts", "pid"},
    "i": {"name", "cat", "s", "ts", "pid", "tid"},
    "C": {"name", "ts", "pid", "args"},
    "M": {"name", "pid", "args"},
}
"""By phase: the fields that it must have."""
NAMES = {"process_name", "thread_name", "thread_sort_index"}


@dataclass
class Slice:
    """From ``start`` to ``end`` (nanoseconds); ``inside`` are the slices that it encloses, in order."""

    name: str
    start: int
    end: int = -1
    args: dict[str, Any] = field(default_factory=dict)
    inside: list[Slice] = field(default_factory=list)


@dataclass
class Trace:
    """What a file says.  ``requests`` are async slices by id, ``steps`` those of each track, in order of time."""

    requests: dict[int, list[Slice]]
    tracks: dict[int, list[Slice]]
    counters: dict[str, list[tuple[int, int]]]
    instants: list[tuple[int, str, dict[str, Any]]]
    marks: dict[int, list[tuple[int, str]]]
    """By request: what happened to it at one moment."""
    names: dict[str, Any]


def read(path: Path) -> Trace:
    """Read the file and hold it to every rule."""
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    whole = json.loads(data, parse_float=Decimal, parse_constant=_refuse)
    assert set(whole) == {"displayTimeUnit", "otherData", "traceEvents"}
    assert whole["displayTimeUnit"] in ("ms", "ns")
    trace = Trace({}, {}, defaultdict(list), [], defaultdict(list), {})
    stacks: dict[int, list[Slice]] = defaultdict(list)
    last: dict[int, int] = {}
    for event in whole["traceEvents"]:
        kind = event["ph"]
        needed = NEEDS[kind] | {"ph"}
        assert needed <= set(event) <= needed | {"args", "tid"}, event
        assert isinstance(event["pid"], int)
        if kind == "M":
            assert event["name"] in NAMES
            (value,) = event["args"].values()
            trace.names[f"{event['name']} {event.get('tid', '')}".strip()] = value
            continue
        at = _ns(event["ts"])
        if kind == "X":
            span = Slice(event["name"], at, at + _ns(event["dur"]), event.get("args", {}))
            trace.tracks.setdefault(event["tid"], []).append(span)
        elif kind == "C":
            (value,) = event["args"].values()
            assert isinstance(value, int)
            assert value >= 0
            trace.counters[event["name"]].append((at, value))
        elif kind == "i":
            assert event["s"] == "t"
            trace.instants.append((at, event["name"], event["args"]))
        else:
            _async(trace, stacks[event["id"]], event, at, last)
    assert not any(stacks.values()), "a slice that begins must end"
    for spans in trace.tracks.values():
        spans.sort(key=lambda span: span.start)
        for before, after in pairwise(spans):
            assert before.end <= after.start, "complete events of a track must not overlap"
    assert {"process_name"} <= set(trace.names)
    assert {f"thread_name {track}" for track in trace.tracks} <= set(trace.names)
    return trace


def _async(trace: Trace, stack: list[Slice], event: dict[str, Any], at: int, last: dict[int, int]) -> None:
    id = event["id"]
    assert last.get(id, 0) <= at, "events of a request must be in order of time"
    last[id] = at
    if event["ph"] == "n":
        trace.marks[id].append((at, event["name"]))
    elif event["ph"] == "b":
        span = Slice(event["name"], at, args=event.get("args", {}))
        (stack[-1].inside if stack else trace.requests.setdefault(id, [])).append(span)
        stack.append(span)
    else:
        span = stack.pop()
        assert span.name == event["name"], "slices of a request must nest"
        span.end = at
        span.args |= event.get("args", {})


def _ns(micros: Decimal | int) -> int:
    """A whole number of nanoseconds, not negative."""
    ns = Decimal(micros) * 1000
    assert ns == int(ns) >= 0
    return int(ns)


def _refuse(word: str) -> None:
    raise AssertionError(f"{word} is no number of JSON")
