"""A workload as a file: whatever was read, drawn or shaped, kept as it is.

The first line says what holds for all requests, each further one is a request: the fields of ``TraceRequest`` in their
order, those at the end that have their defaults left out.  Read again, it is the same workload to the digest.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from stepwell.core.errors import UserError
from stepwell.sim.workload.reading import Format, Intake, Reading, numbered_lines
from stepwell.sim.workload.request import TraceRequest, Workload
from stepwell.sim.workload.rows import RowError

_FIELDS = TraceRequest.__struct_fields__
_DEFAULTS = [getattr(TraceRequest(0, 0, 0), name) for name in _FIELDS]
_LEAST = 3


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``stepwell_workload`` is the version of the format."""

    stepwell_workload: int = 1
    key_tokens: int = 0


def write_workload(workload: Workload, path: Path) -> None:
    """Raises ``UserError`` if the file cannot be written."""
    lines: list[object] = [_Head(key_tokens=workload.key_tokens), *(_row(each) for each in workload.requests)]
    try:
        path.write_bytes(msgspec.json.Encoder().encode_lines(lines))
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}", field="out") from None


def _row(request: TraceRequest) -> list[object]:
    row = [getattr(request, name) for name in _FIELDS]
    while len(row) > _LEAST and row[-1] == _DEFAULTS[len(row) - 1]:
        row.pop()
    return row


def _request(line: str) -> TraceRequest:
    try:
        row = msgspec.json.decode(line, type=list[msgspec.Raw])
        if not _LEAST <= len(row) <= len(_FIELDS):
            raise RowError(f"has {len(row)} fields, not {_LEAST} to {len(_FIELDS)}")
        tree = dict(zip(_FIELDS, (msgspec.json.decode(each) for each in row), strict=False))
        request = msgspec.convert(tree, TraceRequest)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RowError(str(error)) from None
    if any(isinstance(value, int) and value < 0 for name, value in tree.items() if name != "priority"):
        raise RowError("counts and times are not negative")
    return request


def _read(path: Path, format: Format, reading: Reading) -> Workload:
    intake = Intake(path, reading.skip_bad)
    with path.open("rb") as file:
        lines = numbered_lines(path, file)
        _, first = next(lines, (1, ""))
        try:
            head = msgspec.json.decode(first, type=_Head)
        except (msgspec.DecodeError, RecursionError) as error:
            raise UserError(f"{path}, line 1: {error}", field="trace") from None
        if head.stepwell_workload != 1 or head.key_tokens < 0:
            raise UserError(f"{path}, line 1: not version 1 of a workload", field="trace")
        for number, line in lines:
            intake.take(_request, number, line)
    workload = intake.workload(format, reading, key_tokens=head.key_tokens)
    return msgspec.structs.replace(workload, key_tokens=head.key_tokens)


def _recognises(first: str) -> bool:
    return first.startswith('{"stepwell_workload"')


KEPT = Format("workload", '{"stepwell_workload":1, …', _recognises, _read)
