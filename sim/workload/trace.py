"""``read_trace``: a file of recorded requests becomes a workload, and every row is accounted for.

The rules, the same for every format:

- the number of prompt tokens is a positive whole number; 0 is **refused** (no engine accepts an empty prompt);
- the number of output tokens is a whole number; 0 (how traces write a failed request) is **dropped**: there is nothing
  to generate, and no time per output token;
- **refused** as well: a negative or blank number, ``NaN``, ``inf``, a fraction (even ``12.0``), a sign, a thousands
  separator, a quote, more than 2^31 - 1 tokens; a time that does not parse; a row with too few or too many fields; a
  blank line, unless only blank lines follow it; bytes that are not UTF-8;
- a byte order mark at the start and lines ending CRLF are accepted, as is a last line without an end;
- rows out of order in time are sorted and counted; the sort is stable, so equal times keep the order of the file;
- a missing column is refused, naming it, whatever else is asked for;
- a refused row stops the import with file, line and reason; with ``skip_bad`` it is left out, counted and noted.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from stepwell.core.errors import UserError
from stepwell.core.schema import convert
from stepwell.sim.workload.azure import AZURE
from stepwell.sim.workload.burstgpt import BURSTGPT
from stepwell.sim.workload.journal import JOURNAL
from stepwell.sim.workload.kept import KEPT
from stepwell.sim.workload.mooncake import MOONCAKE
from stepwell.sim.workload.qwen import QWEN
from stepwell.sim.workload.reading import Format, Reading
from stepwell.sim.workload.request import Workload
from stepwell.sim.workload.rows import shown
from stepwell.sim.workload.servegen import SERVEGEN
from stepwell.sim.workload.sharegpt import SHAREGPT
from stepwell.sim.workload.simple import SIMPLE
from stepwell.sim.workload.transform import first
from stepwell.sim.workload.vllm_log import VLLM_LOG

FORMATS: dict[str, Format] = {
    format.name: format
    for format in (JOURNAL, KEPT, AZURE, BURSTGPT, QWEN, MOONCAKE, SHAREGPT, SIMPLE, SERVEGEN, VLLM_LOG)
}
"""Every format by name; a file is of the first one that recognises its beginning."""

_HEAD = 1 << 16


def read_trace(
    path: str | os.PathLike[str],
    *,
    format: str | None = None,
    limit: int | None = None,
    skip_bad: bool = False,
    debucket: bool = False,
    settings: Mapping[str, object] | None = None,
) -> Workload:
    """Read a trace file by the rules above.

    ``format`` is one of ``FORMATS``; found from the first line if not given.  ``limit``: keep the first so many
    requests in order of time.  ``debucket``: spread arrivals that share a coarse stamp (formats that have those).
    ``settings`` are the format's own options.  Raises ``UserError``.
    """
    path = Path(path)
    if limit is not None and limit < 1:
        raise UserError(f"must be at least 1, not {limit}", field="limit")
    try:
        chosen = format_of(path, format)
        if debucket and not chosen.bucket_ns:
            raise UserError(f"{path}: the format {chosen.name!r} has no buckets to spread", field="debucket")
        options = convert(dict(settings or {}), chosen.options, field="settings")
        workload = chosen.read(path, chosen, Reading(skip_bad, debucket, limit, options))
    except OSError as error:
        raise UserError(f"{error.filename or path}: {error.strerror or error}", field="trace") from None
    return first(workload, limit) if limit is not None and limit < len(workload) else workload


def format_of(path: Path, name: str | None = None) -> Format:
    """The format called ``name``, or the one that recognises the file.  Raises ``UserError`` or ``OSError``."""
    with path.open("rb") as file:
        head = file.read(_HEAD)
    first_line = head.decode("utf-8-sig", errors="replace").partition("\n")[0].rstrip("\r")
    if not first_line.strip():
        raise UserError(f"{path}: {'line 1 is blank' if head else 'is empty'}", field="trace")
    known = "; ".join(f"{each.name} ({each.looks})" for each in FORMATS.values())
    if name is not None:
        if name not in FORMATS:
            raise UserError(f"unknown trace format {name!r}; known: {known}", field="format")
        return FORMATS[name]
    for each in FORMATS.values():
        if each.recognises(first_line):
            return each
    raise UserError(
        f"{path}, line 1: no known trace format begins with {shown(first_line)}; known: {known}", field="trace"
    )
