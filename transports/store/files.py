"""The table of files: what clients uploaded, and what batches answered.

An upload is kept in pieces.  The output of a batch is no copy: it is the rows that were written as its lines ended.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from stepwell.transports.errors import RequestError
from stepwell.transports.store.database import Schema

MOST_PIECE = 256 << 10
"""Bytes of an upload in one row, and about those of a file that are read at once."""

SCHEMA = Schema(
    "files",
    (
        """
        CREATE TABLE files (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            id TEXT NOT NULL UNIQUE,
            tenant TEXT NOT NULL,
            filename TEXT NOT NULL,
            purpose TEXT NOT NULL,
            bytes INTEGER NOT NULL,
            created_at INTEGER NOT NULL,
            expires_at INTEGER,
            batch INTEGER,
            failed INTEGER NOT NULL DEFAULT 0,
            whole INTEGER NOT NULL DEFAULT 0
        );
        CREATE INDEX files_of_tenant ON files (tenant, number);
        CREATE INDEX files_by_size ON files (tenant, bytes);
        CREATE INDEX files_that_expire ON files (expires_at) WHERE expires_at IS NOT NULL;
        CREATE INDEX files_of_batch ON files (batch) WHERE batch IS NOT NULL;
        CREATE TABLE pieces (
            file INTEGER NOT NULL,
            place INTEGER NOT NULL,
            data BLOB NOT NULL,
            UNIQUE (file, place)
        );
        CREATE TABLE results (
            key INTEGER PRIMARY KEY,
            failed INTEGER NOT NULL,
            data BLOB NOT NULL
        );
        CREATE INDEX results_failed ON results (key) WHERE failed;
        """,
    ),
)
"""``files.batch``: of the output of a batch, its number; ``failed`` tells its errors from its answers.  ``whole`` is 0
until a file can be seen.  ``results.key``: see ``key_of``."""

_SHIFT = 20


class FileRow(msgspec.Struct, frozen=True):
    """A row of ``files``, in its order."""

    number: int
    id: str
    tenant: str
    filename: str
    purpose: str
    bytes: int
    created_at: int
    expires_at: int | None
    batch: int | None
    failed: int
    whole: int

    @property
    def object(self) -> dict[str, Any]:
        """OpenAI's."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.bytes,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed" if self.whole else "uploaded",
            "status_details": None,
        }


def key_of(batch: int, line: int) -> int:
    """Of the result of a line: those of one batch lie together, in the order of its lines."""
    return (batch << _SHIFT) + line


def line_of(key: int) -> int:
    """The line of a result's key."""
    return key & ((1 << _SHIFT) - 1)


# ------------------------------------------------------------------------------------------------ looking


def find(db: sqlite3.Connection, tenant: str, id: str, field: str = "") -> FileRow:
    """The file, if it is whole and the tenant's; otherwise nobody is told that there is one."""
    row = db.execute("SELECT * FROM files WHERE id = ? AND tenant = ? AND whole", (id, tenant)).fetchone()
    if row is None:
        raise RequestError(f"there is no file {id[:100]!r}", field=field, status=404, code="file_not_found")
    return FileRow(*row)


def listed(
    db: sqlite3.Connection, tenant: str, *, purpose: str, after: str, limit: int, newest_first: bool
) -> tuple[list[FileRow], bool]:
    """Files in the order of their making, behind ``after``, and whether there are more."""
    where, values = "tenant = ? AND whole", [tenant]
    if purpose:
        where += " AND purpose = ?"
        values.append(purpose)
    rows, more = page(db, "files", where, values, after, limit, newest_first)
    return [FileRow(*row) for row in rows], more


def page(
    db: sqlite3.Connection,
    table: str,
    where: str,
    values: Sequence[object],
    after: str,
    limit: int,
    newest_first: bool,
) -> tuple[list[tuple[Any, ...]], bool]:
    """Rows of a table, by ``number``, behind the one with the id ``after``, and whether there are more."""
    order, than = ("DESC", "<") if newest_first else ("ASC", ">")
    behind = ""
    if after:
        behind = f" AND number {than} (SELECT number FROM {table} WHERE id = ? AND tenant = ?)"
        values = [*values, after, values[0]]
    query = f"SELECT * FROM {table} WHERE {where}{behind} ORDER BY number {order} LIMIT ?"
    rows = db.execute(query, [*values, limit + 1]).fetchall()
    return rows[:limit], len(rows) > limit


def used(db: sqlite3.Connection, tenant: str) -> tuple[int, int]:
    """Files of a tenant, unfinished uploads included, and their bytes."""
    row = db.execute("SELECT count(*), coalesce(sum(bytes), 0) FROM files WHERE tenant = ?", (tenant,)).fetchone()
    return int(row[0]), int(row[1])


def total_bytes(db: sqlite3.Connection) -> int:
    """Of all files."""
    return int(db.execute("SELECT coalesce(sum(bytes), 0) FROM files").fetchone()[0])


# ------------------------------------------------------------------------------------------------ uploads


class Room(msgspec.Struct, frozen=True):
    """What one tenant may have, and one file."""

    tenant_bytes: int
    tenant_files: int
    file_bytes: int


def begin(db: sqlite3.Connection, tenant: str, now: int, room: Room) -> int:
    """Make a file that nobody sees yet; its number."""
    count, _ = used(db, tenant)
    if count >= room.tenant_files:
        raise _full(f"there are {count} files, and {room.tenant_files} at most; delete some")
    cursor = db.execute(
        "INSERT INTO files (id, tenant, filename, purpose, bytes, created_at) VALUES (?, ?, '', '', 0, ?)",
        (f"file-{uuid.uuid4().hex}", tenant, now),
    )
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def append(db: sqlite3.Connection, number: int, place: int, data: bytes, tenant: str, room: Room) -> None:
    """The next piece of an upload."""
    db.execute("INSERT INTO pieces VALUES (?, ?, ?)", (number, place, data))
    db.execute("UPDATE files SET bytes = bytes + ? WHERE number = ?", (len(data), number))
    _, total = used(db, tenant)
    if total > room.tenant_bytes:
        raise _full(f"files take {room.tenant_bytes >> 20} MiB at most; delete some")


def end(db: sqlite3.Connection, number: int, filename: str, purpose: str, expires_s: int) -> FileRow:
    """All of it is there: from now on it can be seen, for so long from when it began to come."""
    db.execute(
        "UPDATE files SET whole = 1, filename = ?, purpose = ?, expires_at = created_at + ? WHERE number = ?",
        (filename, purpose, expires_s, number),
    )
    return FileRow(*db.execute("SELECT * FROM files WHERE number = ?", (number,)).fetchone())


def _full(message: str) -> RequestError:
    return RequestError(message, status=413, code="storage_quota_exceeded")


# ------------------------------------------------------------------------------------------------ deleting


def remove(db: sqlite3.Connection, row: FileRow) -> None:
    """The file and what it holds."""
    db.execute("DELETE FROM files WHERE number = ?", (row.number,))
    if row.batch is None:
        db.execute("DELETE FROM pieces WHERE file = ?", (row.number,))
    else:
        first, last = key_of(row.batch, 0), key_of(row.batch + 1, 0)
        db.execute("DELETE FROM results WHERE key >= ? AND key < ? AND failed = ?", (first, last, row.failed))


def discard(db: sqlite3.Connection, number: int) -> None:
    """The same of an upload that has no end."""
    for row in db.execute("SELECT * FROM files WHERE number = ?", (number,)).fetchall():
        remove(db, FileRow(*row))


def remove_unfinished(db: sqlite3.Connection) -> int:
    """Uploads that a process left behind when it ended; how many there were."""
    rows = db.execute("SELECT * FROM files WHERE NOT whole AND batch IS NULL").fetchall()
    for row in rows:
        remove(db, FileRow(*row))
    return len(rows)


# ------------------------------------------------------------------------------------------------ contents


Read = Callable[[sqlite3.Connection], tuple[bytes, int]]


def piece(row: FileRow, place: int) -> Read:
    """Reads what lies at ``place`` (0: the beginning), and says where to go on; -1: nowhere."""
    if row.batch is None:
        return lambda db: _uploaded(db, row, place)
    first, end = key_of(row.batch, 0), key_of(row.batch + 1, 0)
    return lambda db: _recorded(db, max(place, first), end, row.failed)


def _uploaded(db: sqlite3.Connection, row: FileRow, place: int) -> tuple[bytes, int]:
    found = db.execute("SELECT data FROM pieces WHERE file = ? AND place = ?", (row.number, place)).fetchone()
    return (found[0], place + 1) if found else (b"", -1)


def _recorded(db: sqlite3.Connection, start: int, end: int, failed: int) -> tuple[bytes, int]:
    parts: list[bytes] = []
    size, place = 0, -1
    for key, data in _rows(db, start, end, failed):
        parts.append(data)
        size += len(data)
        if size >= MOST_PIECE:
            place = key + 1
            break
    return b"".join(parts), place


def _rows(db: sqlite3.Connection, start: int, end: int, failed: int) -> Iterator[tuple[int, bytes]]:
    which = "failed" if failed else "NOT failed"
    yield from db.execute(
        f"SELECT key, data FROM results WHERE key >= ? AND key < ? AND {which} ORDER BY key", (start, end)
    )
