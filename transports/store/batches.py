"""The table of batches, and what is recorded of their lines.

A line is recorded once: its result's key says batch and line.  Counts, bytes and the result are written together, so
that they agree whenever the process ends.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec

from stepwell.core.errors import CapacityError
from stepwell.transports.errors import RequestError
from stepwell.transports.store import files
from stepwell.transports.store.database import Schema
from stepwell.transports.store.files import key_of, line_of

UNFINISHED = ("validating", "in_progress", "finalizing", "cancelling")
_UNFINISHED = ", ".join(f"'{each}'" for each in UNFINISHED)

DAY_S = 86_400

SCHEMA = Schema(
    "batches",
    (
        f"""
        CREATE TABLE batches (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            tenant TEXT NOT NULL,
            endpoint TEXT NOT NULL,
            input_file_id TEXT NOT NULL,
            completion_window TEXT NOT NULL,
            status TEXT NOT NULL,
            created_at INTEGER NOT NULL,
            expires_at INTEGER NOT NULL,
            in_progress_at INTEGER,
            finalizing_at INTEGER,
            completed_at INTEGER,
            failed_at INTEGER,
            expired_at INTEGER,
            cancelling_at INTEGER,
            cancelled_at INTEGER,
            total INTEGER NOT NULL DEFAULT 0,
            completed INTEGER NOT NULL DEFAULT 0,
            failed INTEGER NOT NULL DEFAULT 0,
            input_tokens INTEGER NOT NULL DEFAULT 0,
            cached_tokens INTEGER NOT NULL DEFAULT 0,
            output_tokens INTEGER NOT NULL DEFAULT 0,
            reasoning_tokens INTEGER NOT NULL DEFAULT 0,
            output_file_id TEXT,
            error_file_id TEXT,
            output_seconds INTEGER,
            model TEXT,
            metadata TEXT,
            errors TEXT
        );
        CREATE INDEX batches_of_tenant ON batches (tenant, number);
        CREATE INDEX batches_unfinished ON batches (number) WHERE status IN ({_UNFINISHED});
        """,
    ),
)


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one answer."""

    input: int = 0
    cached: int = 0
    output: int = 0
    reasoning: int = 0


class Result(msgspec.Struct, frozen=True):
    """What is recorded of a line: a row of the output file or of the error file, with its line break."""

    line: int
    failed: bool
    data: bytes
    usage: Usage = Usage()


class NewBatch(msgspec.Struct, frozen=True):
    """What a client asked for, checked; ``output_seconds``: the age at which its output goes."""

    endpoint: str
    input_file_id: str
    completion_window: str
    window_s: int
    metadata: dict[str, str] | None = None
    output_seconds: int | None = None


class BatchRow(msgspec.Struct, frozen=True):
    """A row of ``batches``, in its order."""

    number: int
    id: str
    tenant: str
    endpoint: str
    input_file_id: str
    completion_window: str
    status: str
    created_at: int
    expires_at: int
    in_progress_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    total: int
    completed: int
    failed: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    reasoning_tokens: int
    output_file_id: str | None
    error_file_id: str | None
    output_seconds: int | None
    model: str | None
    metadata: str | None
    errors: str | None

    @property
    def object(self) -> dict[str, Any]:
        """OpenAI's."""
        ended = self.status not in UNFINISHED
        times = ("in_progress", "expires", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "model": self.model,
            "errors": msgspec.json.decode(self.errors) if self.errors else None,
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "status": self.status,
            "output_file_id": self.output_file_id if ended else None,
            "error_file_id": self.error_file_id if ended else None,
            "created_at": self.created_at,
            **{f"{each}_at": getattr(self, f"{each}_at") for each in times},
            "request_counts": {"total": self.total, "completed": self.completed, "failed": self.failed},
            "usage": {
                "input_tokens": self.input_tokens,
                "input_tokens_details": {"cached_tokens": self.cached_tokens},
                "output_tokens": self.output_tokens,
                "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
                "total_tokens": self.input_tokens + self.output_tokens,
            },
            "metadata": msgspec.json.decode(self.metadata) if self.metadata else None,
        }


# ------------------------------------------------------------------------------------------------ clients


def create(db: sqlite3.Connection, tenant: str, asked: NewBatch, now: int, most: int) -> BatchRow:
    """A batch that waits to be looked at.  ``most``: unfinished ones that the tenant may have."""
    query = f"SELECT count(*) FROM batches WHERE tenant = ? AND status IN ({_UNFINISHED})"
    (unfinished,) = db.execute(query, (tenant,)).fetchone()
    if unfinished >= most:
        raise CapacityError(f"{unfinished} batches are not finished, and {most} at most", code="too_many_batches")
    field = "input_file_id"
    file = files.find(db, tenant, asked.input_file_id, field)
    if file.purpose != "batch":
        raise RequestError(f"was uploaded for {file.purpose!r}, not for 'batch'", field=field)
    columns = {
        "id": f"batch_{uuid.uuid4().hex}",
        "tenant": tenant,
        "endpoint": asked.endpoint,
        "input_file_id": asked.input_file_id,
        "completion_window": asked.completion_window,
        "status": "validating",
        "created_at": now,
        "expires_at": now + asked.window_s,
        "output_seconds": asked.output_seconds,
        "metadata": msgspec.json.encode(asked.metadata).decode() if asked.metadata is not None else None,
    }
    names, marks = ", ".join(columns), ", ".join("?" * len(columns))
    cursor = db.execute(f"INSERT INTO batches ({names}) VALUES ({marks})", tuple(columns.values()))
    assert cursor.lastrowid is not None
    return get(db, cursor.lastrowid)


def get(db: sqlite3.Connection, number: int) -> BatchRow:
    """By its number."""
    return BatchRow(*db.execute("SELECT * FROM batches WHERE number = ?", (number,)).fetchone())


def find(db: sqlite3.Connection, tenant: str, id: str) -> BatchRow:
    """The tenant's own; otherwise nobody is told that there is one."""
    row = db.execute("SELECT * FROM batches WHERE id = ? AND tenant = ?", (id, tenant)).fetchone()
    if row is None:
        raise RequestError(f"there is no batch {id[:100]!r}", status=404, code="batch_not_found")
    return BatchRow(*row)


def listed(db: sqlite3.Connection, tenant: str, after: str, limit: int) -> tuple[list[BatchRow], bool]:
    """Batches, the newest first, behind ``after``, and whether there are more."""
    rows, more = files.page(db, "batches", "tenant = ?", [tenant], after, limit, newest_first=True)
    return [BatchRow(*row) for row in rows], more


def cancel(db: sqlite3.Connection, tenant: str, id: str, now: int) -> BatchRow:
    """It ends early.  One that is ending already ends as it would have."""
    row = find(db, tenant, id)
    if row.status in ("validating", "in_progress"):
        _move(db, row.number, "cancelling", now)
    elif row.status not in UNFINISHED:
        raise RequestError(f"the batch is {row.status} and cannot be cancelled", status=409, code="batch_ended")
    return get(db, row.number)


def remove_file(db: sqlite3.Connection, tenant: str, id: str) -> None:
    """Delete a file, unless a batch still reads it."""
    row = files.find(db, tenant, id)
    query = f"SELECT id FROM batches WHERE tenant = ? AND input_file_id = ? AND status IN ({_UNFINISHED})"
    reader = db.execute(query, (tenant, id)).fetchone()
    if reader is not None:
        raise RequestError(f"the batch {reader[0]} reads this file; cancel it first", status=409, code="file_in_use")
    files.remove(db, row)


# ------------------------------------------------------------------------------------------------ the runner


def unfinished(db: sqlite3.Connection) -> list[BatchRow]:
    """Those to go on with, the oldest first."""
    rows = db.execute(f"SELECT * FROM batches WHERE status IN ({_UNFINISHED}) ORDER BY number").fetchall()
    return [BatchRow(*row) for row in rows]


def start(db: sqlite3.Connection, number: int, total: int, model: str, now: int) -> BatchRow:
    """Its lines are counted, and may be run; its output takes room from now on.  Not if it was cancelled meanwhile."""
    row = get(db, number)
    output, errors = (f"file-{uuid.uuid4().hex}" for _ in range(2))
    for id, failed, word in ((output, 0, "output"), (errors, 1, "error")):
        db.execute(
            "INSERT INTO files (id, tenant, filename, purpose, bytes, created_at, batch, failed)"
            " VALUES (?, ?, ?, 'batch_output', 0, ?, ?, ?)",
            (id, row.tenant, f"{row.id}_{word}.jsonl", now, number, failed),
        )
    db.execute(
        "UPDATE batches SET total = ?, model = ?, output_file_id = ?, error_file_id = ? WHERE number = ?",
        (total, model, output, errors, number),
    )
    if row.status == "validating":
        _move(db, number, "in_progress", now)
    return get(db, number)


def fail(db: sqlite3.Connection, number: int, errors: Sequence[dict[str, Any]], now: int) -> None:
    """No line of it is run."""
    told = msgspec.json.encode({"object": "list", "data": errors}).decode()
    db.execute("UPDATE batches SET errors = ? WHERE number = ?", (told, number))
    _move(db, number, "failed", now)


def record(db: sqlite3.Connection, number: int, results: Sequence[Result]) -> None:
    """Results of lines; of those that have one already nothing."""
    for failed in (False, True):
        new = [each for each in results if each.failed == failed and _insert(db, number, each)]
        if not new:
            continue
        column, file = ("failed", "error_file_id") if failed else ("completed", "output_file_id")
        size = sum(len(each.data) for each in new)
        db.execute(
            f"UPDATE files SET bytes = bytes + ? WHERE id = (SELECT {file} FROM batches WHERE number = ?)",
            (size, number),
        )
        db.execute(
            f"UPDATE batches SET {column} = {column} + ?, input_tokens = input_tokens + ?,"
            " cached_tokens = cached_tokens + ?, output_tokens = output_tokens + ?,"
            " reasoning_tokens = reasoning_tokens + ? WHERE number = ?",
            (
                len(new),
                sum(each.usage.input for each in new),
                sum(each.usage.cached for each in new),
                sum(each.usage.output for each in new),
                sum(each.usage.reasoning for each in new),
                number,
            ),
        )


def _insert(db: sqlite3.Connection, number: int, result: Result) -> bool:
    row = (key_of(number, result.line), int(result.failed), result.data)
    return db.execute("INSERT OR IGNORE INTO results VALUES (?, ?, ?)", row).rowcount == 1


def recorded(db: sqlite3.Connection, number: int) -> list[int]:
    """The lines that have a result."""
    query = "SELECT key FROM results WHERE key >= ? AND key < ?"
    return [line_of(key) for (key,) in db.execute(query, (key_of(number, 0), key_of(number + 1, 0)))]


def finalize(db: sqlite3.Connection, number: int, now: int) -> BatchRow:
    """Every line has its result.  Not if it was cancelled meanwhile."""
    if get(db, number).status == "in_progress":
        _move(db, number, "finalizing", now)
    return get(db, number)


def finish(db: sqlite3.Connection, number: int, status: str, now: int, file_s: int) -> None:
    """It is ``completed``, ``expired`` or ``cancelled``, and its files can be seen; those without a line are none.

    One that somebody cancelled meanwhile is cancelled, whatever it was about to be.
    """
    row = get(db, number)
    status = "cancelled" if row.status == "cancelling" else status
    expires_at = now + (row.output_seconds or file_s)
    for column, id in (("output_file_id", row.output_file_id), ("error_file_id", row.error_file_id)):
        if id is not None and not _publish(db, id, now, expires_at):
            db.execute(f"UPDATE batches SET {column} = NULL WHERE number = ?", (number,))
    _move(db, number, status, now)


def _publish(db: sqlite3.Connection, id: str, now: int, expires_at: int) -> bool:
    """A file is listed by when it can be seen, so it becomes the newest."""
    (size,) = db.execute("SELECT bytes FROM files WHERE id = ?", (id,)).fetchone()
    if size:
        names = "tenant, filename, purpose, bytes, batch, failed"
        copy = f"INSERT INTO files (id, created_at, expires_at, whole, {names})"
        db.execute(f"{copy} SELECT '', ?, ?, 1, {names} FROM files WHERE id = ?", (now, expires_at, id))
    db.execute("DELETE FROM files WHERE id = ?", (id,))
    db.execute("UPDATE files SET id = ? WHERE id = ''", (id,))
    return bool(size)


def _move(db: sqlite3.Connection, number: int, status: str, now: int) -> None:
    db.execute(f"UPDATE batches SET status = ?, {status}_at = ? WHERE number = ?", (status, now, number))


def sweep(db: sqlite3.Connection, now: int, batch_s: int, most: int = 16) -> int:
    """Delete files that are too old, a few at a time, and batches that ended long ago; how many files went."""
    query = (
        "SELECT * FROM files WHERE expires_at <= ? AND whole AND NOT EXISTS (SELECT 1 FROM batches"
        f" WHERE batches.tenant = files.tenant AND input_file_id = files.id AND status IN ({_UNFINISHED})) LIMIT ?"
    )
    rows = db.execute(query, (now, most)).fetchall()
    for row in rows:
        files.remove(db, files.FileRow(*row))
    db.execute(
        f"DELETE FROM batches WHERE status NOT IN ({_UNFINISHED}) AND expires_at <= ?"
        " AND NOT EXISTS (SELECT 1 FROM files WHERE files.batch = batches.number)",
        (now - batch_s,),
    )
    return len(rows)
