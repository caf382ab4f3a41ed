"""The table of responses: each is written when it is over, and one in the background when it begins, too.

One that was on its way when a process ended is told from others by ``boot``, which names the process that makes it.
"""

from __future__ import annotations

import sqlite3

import msgspec

from stepwell.transports.store.database import Schema

SCHEMA = Schema(
    "responses",
    (
        """
        CREATE TABLE responses (
            id TEXT PRIMARY KEY,
            tenant TEXT NOT NULL,
            previous TEXT,
            boot TEXT,
            expires_at INTEGER NOT NULL,
            response BLOB NOT NULL,
            input BLOB NOT NULL
        );
        CREATE INDEX responses_by_age ON responses (expires_at);
        CREATE TABLE responses_size (bytes INTEGER NOT NULL);
        INSERT INTO responses_size VALUES (0);
        """,
    ),
)
COST = 512
"""Bytes of a row beside its two texts, about."""
_SIZE = f"length(response) + length(input) + {COST}"


class ResponseRow(msgspec.Struct, frozen=True):
    """A row of ``responses``.  ``response`` and ``input`` are JSON; ``boot`` is None once it is over."""

    id: str
    tenant: str
    previous: str | None
    boot: str | None
    expires_at: int
    response: bytes
    input: bytes


def put(db: sqlite3.Connection, row: ResponseRow, most_bytes: int) -> None:
    """Write it, in the place of what was there under its name; with more bytes than that, those that would go first
    anyway go."""
    _remove(db, "id = ?", row.id)
    if len(row.response) + len(row.input) + COST > most_bytes:
        return
    db.execute("INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?, ?)", msgspec.structs.astuple(row))
    db.execute("UPDATE responses_size SET bytes = bytes + ?", (len(row.response) + len(row.input) + COST,))
    while size(db) > most_bytes:
        _remove(db, "id = (SELECT id FROM responses ORDER BY expires_at, rowid LIMIT 1)")


def find(db: sqlite3.Connection, tenant: str, id: str, now: int) -> ResponseRow | None:
    """The tenant's own, unless its time is over."""
    query = "SELECT * FROM responses WHERE id = ? AND tenant = ? AND expires_at > ?"
    found = db.execute(query, (id, tenant, now)).fetchone()
    return ResponseRow(*found) if found else None


def touch(db: sqlite3.Connection, id: str, expires_at: int) -> None:
    """Its time begins again."""
    db.execute("UPDATE responses SET expires_at = ? WHERE id = ?", (expires_at, id))


def remove(db: sqlite3.Connection, id: str) -> None:
    """Harmless if there is none."""
    _remove(db, "id = ?", id)


def sweep(db: sqlite3.Connection, now: int) -> None:
    """Those whose time is over go."""
    _remove(db, "expires_at <= ?", now)


def size(db: sqlite3.Connection) -> int:
    """Bytes of all of them."""
    return int(db.execute("SELECT bytes FROM responses_size").fetchone()[0])


def _remove(db: sqlite3.Connection, which: str, *values: object) -> None:
    (gone,) = db.execute(f"SELECT coalesce(sum({_SIZE}), 0) FROM responses WHERE {which}", values).fetchone()
    if gone:
        db.execute(f"DELETE FROM responses WHERE {which}", values)
        db.execute("UPDATE responses_size SET bytes = bytes - ?", (gone,))
