"""Step time from measurements on grids, interpolated.

    step = base + decode(decoding requests, KV tokens read) + prefill(prefill tokens, prefill pairs)
           + prefill requests × a + pages swapped × b + pages copied within the device × c

``decode`` and ``prefill`` are grids (``sim.cost.grid``) of the time beyond ``base``.  KV tokens are those of the whole
step, so the context of a prompt's later chunk counts there, as reading it costs the same; what is computed with it is
in the pairs.  A grid with one place on an axis does not look at that count.

A table that decreases anywhere is refused, not repaired: whoever measured noise says how to mend it
(``sim.cost.grid.raised``).  Beyond the grid the last cell goes on linearly, and ``reach`` tells that it does.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Annotated, Any

import msgspec

from stepwell.core.errors import UserError
from stepwell.core.protocols import BatchShape
from stepwell.core.schema import convert
from stepwell.sim.cost.grid import Grid
from stepwell.sim.cost.reach import Reach
from stepwell.sim.cost.running import run_by_steps

Nanoseconds = Annotated[int, msgspec.Meta(ge=0, le=3_600 * 10**9)]

_ANY = (0, 1 << 62)
_MOST_BYTES = 64 << 20
_COLUMNS = ("grid", "row", "column", "ns")


class Table:
    """Interpolates measured steps."""

    name = "table"

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
        """A table, here or in ``file``; a calibration writes one."""

        base_ns: Annotated[int, msgspec.Meta(ge=1, le=3_600 * 10**9)] = 1
        """Every step, at least."""
        decode: Grid | None = None
        """Rows: decoding requests.  Columns: KV tokens read.  Values: ns beyond ``base_ns``."""
        prefill: Grid | None = None
        """Rows: prefill tokens.  Columns: prefill pairs.  Values: ns beyond ``base_ns``."""
        prefill_request_ns: Nanoseconds = 0
        swap_page_ns: Nanoseconds = 0
        copy_page_ns: Nanoseconds = 0
        reach: Reach | None = None
        """What was measured; not told: the extent of the grids."""
        file: str = ""
        """JSON with the same keys, or CSV with the columns ``grid`` (decode or prefill), ``row``, ``column``, ``ns``.
        It counts from where the program runs; what stands beside it here is as if it were in the file."""

    def __init__(self, options: Options | None = None) -> None:
        given = Table.Options() if options is None else options
        self.options = it = _read(given) if given.file else given
        if it.decode is None and it.prefill is None:
            raise UserError("a table needs a grid: decode, prefill, or a file with them", field="cost.options.decode")
        self.reach = it.reach or _extent(it)
        self._decode, self._prefill = it.decode, it.prefill

    def step_ns(self, shape: BatchShape) -> int:
        """Time of one step; at least ``base_ns``."""
        it, decode, prefill = self.options, self._decode, self._prefill
        return (
            it.base_ns
            + (decode.at(shape.decode_requests, shape.kv_tokens) if decode is not None else 0)
            + (prefill.at(shape.prefill_tokens, shape.prefill_pairs) if prefill is not None else 0)
            + shape.prefill_requests * it.prefill_request_ns
            + shape.swap_pages * it.swap_page_ns
            + shape.copied_pages * it.copy_page_ns
        )

    def run_ns(self, shape: BatchShape, start_ns: int, steps: int, until_ns: int) -> list[int]:
        """Step by step.  In a run only what attention reads grows."""
        if self._decode is None:
            return run_by_steps(self.step_ns, shape, start_ns, steps, until_ns)
        read, more = shape.kv_tokens, shape.decode_requests
        decode_ns = self._decode.line(more)
        rest_ns = self.step_ns(shape) - decode_ns(read)
        now_ns = start_ns
        ends: list[int] = []
        append = ends.append
        for _ in range(steps):
            now_ns += rest_ns + decode_ns(read)
            append(now_ns)
            if now_ns >= until_ns:
                break
            read += more
        return ends


def _extent(it: Table.Options) -> Reach:
    """Within the grids; counts with a coefficient of their own are taken to be measured."""

    def ends(axis: tuple[int, ...]) -> tuple[int, int]:
        return _ANY if len(axis) == 1 else (axis[0], axis[-1])

    decode, prefill = it.decode, it.prefill
    return Reach(
        decode_requests=ends(decode.rows) if decode else (0, 0),
        kv_tokens=ends(decode.columns) if decode else _ANY,
        prefill_tokens=ends(prefill.rows) if prefill else (0, 0),
        prefill_pairs=ends(prefill.columns) if prefill else _ANY,
        prefill_requests=_ANY if prefill else (0, 0),
        swap_pages=_ANY if it.swap_page_ns else (0, 0),
        copied_pages=_ANY if it.copy_page_ns else (0, 0),
    )


# ------------------------------------------------------------------------------------------------ files


def _read(given: Table.Options) -> Table.Options:
    """The options with what is in their file; raises ``UserError`` that names it."""
    path = Path(given.file)
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UserError(f"{path}: larger than {_MOST_BYTES >> 20} MiB", field="cost.options.file")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}", field="cost.options.file") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8", field="cost.options.file") from None
    tree = _cells(text, path) if path.suffix.lower() == ".csv" else _tree(text, path)
    beside = {
        key: value
        for key, value in msgspec.structs.asdict(given).items()
        if key != "file" and value != getattr(Table.Options(), key)
    }
    try:
        return msgspec.structs.replace(convert(tree, Table.Options), file=given.file, **beside)
    except UserError as error:
        raise UserError(f"{path}: {error}", field="cost.options.file") from None


def _tree(text: str, path: Path) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UserError(f"{path}: not JSON: {error}", field="cost.options.file") from None


def _cells(text: str, path: Path) -> dict[str, Any]:
    """Grids from one line a corner, in any order."""
    found: dict[str, dict[tuple[int, int], int]] = {}
    reader = csv.DictReader(text.splitlines())
    if tuple(reader.fieldnames or ()) != _COLUMNS:
        raise UserError(f"{path}: its first line must be {','.join(_COLUMNS)}", field="cost.options.file")
    for line in reader:
        where = f"{path}, line {reader.line_num}"
        try:
            row, column, ns = int(line["row"]), int(line["column"]), int(line["ns"])
        except (TypeError, ValueError):
            raise UserError(f"{where}: row, column and ns are integers", field="cost.options.file") from None
        cells = found.setdefault(line["grid"], {})
        if (row, column) in cells:
            raise UserError(f"{where}: ({row}, {column}) comes twice", field="cost.options.file")
        cells[row, column] = ns
    return {name: _grid(cells, name, path) for name, cells in found.items()}


def _grid(cells: dict[tuple[int, int], int], name: str, path: Path) -> dict[str, Any]:
    rows, columns = sorted({row for row, _ in cells}), sorted({column for _, column in cells})
    missing = [(row, column) for row in rows for column in columns if (row, column) not in cells]
    if missing:
        raise UserError(f"{path}: grid {name!r} has no corner at {missing[0]}", field="cost.options.file")
    return {"rows": rows, "columns": columns, "values": [[cells[row, each] for each in columns] for row in rows]}
