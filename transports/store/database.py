"""The SQLite file, in WAL mode: one thread writes, one reads, and the event loop runs no SQL.

Who keeps something here declares a ``Schema`` and hands in functions of a connection::

    SCHEMA = Schema("responses", ("CREATE TABLE responses (id TEXT PRIMARY KEY, body BLOB NOT NULL)",))

    def put(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO responses VALUES (?, ?)", (id, body))

    await database.write(put)

What ``write`` returned from is committed and on the disk: neither a killed process nor a lost machine takes it back.
A killed process leaves the file as the last commit left it.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from stepwell.core.errors import UserError
from stepwell.transports.store.worker import Work, Worker

T = TypeVar("T")

APPLICATION_ID = 0x57E9_3E11
"""In the file's header: no other program's database is taken for ours."""
RESERVE_PAGES = 256
"""Of a full store, for what makes room again and for what says how things ended."""
CACHE_KIB = 8192
"""Of each of the two connections."""
MOST_WAL_MIB = 64
"""The log beside the file is cut back to this when it was longer."""


class Schema(msgspec.Struct, frozen=True):
    """The tables of one owner: ``scripts`` of SQL in order, each of which is run once in a file's life."""

    name: str
    scripts: tuple[str, ...]


class Database:
    """An open store.  ``open_database`` makes one."""

    def __init__(self, path: Path, lock: int, writing: sqlite3.Connection, reading: sqlite3.Connection) -> None:
        self.path = path
        self._lock = lock
        self._most_pages = _number(writing, "PRAGMA max_page_count")
        self.page_size = _number(writing, "PRAGMA page_size")
        self._writer = Worker("writer", writing, "BEGIN IMMEDIATE")
        self._reader = Worker("reader", reading)

    async def write(self, work: Work[T]) -> T:
        """Run ``work`` in a transaction; it has been committed when this returns.

        Raises what ``work`` raises, and ``CapacityError`` (``store_full``, ``store_failed``, ``store_busy``): then
        nothing was changed.
        Works are run in the order of their calls, also if whoever called leaves before.
        """
        return await self._writer(work)

    def post(self, work: Work[T]) -> asyncio.Future[T]:
        """The same, for whoever does not wait: the future has what it gave, or why it failed."""
        return self._writer.post(work)

    async def write_at_last(self, work: Work[T]) -> T:
        """The same of what makes room or ends something: it may use the reserve of a full store."""

        def with_reserve(db: sqlite3.Connection) -> T:
            db.execute(f"PRAGMA max_page_count = {self._most_pages + RESERVE_PAGES}")
            try:
                return work(db)
            finally:
                db.execute(f"PRAGMA max_page_count = {self._most_pages}")

        return await self._writer(with_reserve)

    async def read(self, work: Work[T]) -> T:
        """Run ``work``, which changes nothing, on what is committed.  Keep it short: read what is long in pieces."""
        return await self._reader(work)

    def close(self) -> None:
        """Finish what was handed in.  Harmless the second time."""
        self._reader.close()
        self._writer.close()  # the last one to close puts the log into the file
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def open_database(path: str | Path, schemas: Sequence[Schema], total_mib: int) -> Database:
    """Open the file, or make it.  Raises ``UserError`` if it is damaged, newer, in use, or another program's."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = _locked(path)
    except OSError as error:
        raise _wrong(f"{path}: {error.strerror or error}") from None
    try:
        return _opened(path, lock, schemas, total_mib)
    except sqlite3.OperationalError as error:
        os.close(lock)
        raise _wrong(f"{path} cannot be opened: {error}") from None
    except sqlite3.DatabaseError as error:
        os.close(lock)
        raise _damaged(path, str(error)) from None
    except BaseException:
        os.close(lock)
        raise


def _opened(path: Path, lock: int, schemas: Sequence[Schema], total_mib: int) -> Database:
    writing = _connection(path)
    try:
        _check(writing, path)
        writing.execute("PRAGMA journal_mode = WAL")
        writing.execute("PRAGMA synchronous = FULL")
        writing.execute(f"PRAGMA journal_size_limit = {MOST_WAL_MIB << 20}")
        pages = (total_mib << 20) // _number(writing, "PRAGMA page_size")
        writing.execute(f"PRAGMA max_page_count = {max(pages, RESERVE_PAGES) - RESERVE_PAGES}")
        for schema in schemas:
            _migrate(writing, path, schema)
        reading = _connection(path)
        reading.execute("PRAGMA query_only = ON")
    except BaseException:
        writing.close()
        raise
    return Database(path, lock, writing, reading)


def _connection(path: Path) -> sqlite3.Connection:
    """Transactions are begun and ended by hand.  Each is used by one thread at a time, though not by the one here."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    connection.execute("PRAGMA cell_size_check = ON")
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


def _locked(path: Path) -> int:
    """The right to use the file: it goes with the process, however that ends."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    handle = os.open(path.with_name(path.name + "-lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise _wrong(f"{path} is in use by another process") from None
    return handle


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """Whether it is ours, and whole."""
    owner = _number(connection, "PRAGMA application_id")
    tables = _number(connection, "SELECT count(*) FROM sqlite_master")
    if owner != APPLICATION_ID and (owner or tables):
        raise _wrong(f"{path} is the database of another program")
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise _damaged(path, found)
    if not owner:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def _migrate(connection: sqlite3.Connection, path: Path, schema: Schema) -> None:
    connection.execute("CREATE TABLE IF NOT EXISTS schemas (name TEXT PRIMARY KEY, version INTEGER NOT NULL)")
    row = connection.execute("SELECT version FROM schemas WHERE name = ?", (schema.name,)).fetchone()
    version = row[0] if row else 0
    if version > len(schema.scripts):
        raise _wrong(
            f"{path} was written by a newer release ({schema.name} {version}, this one knows {len(schema.scripts)})"
        )
    for number, script in enumerate(schema.scripts[version:], version + 1):
        note = f"INSERT INTO schemas VALUES ('{schema.name}', {number})"
        note += f" ON CONFLICT (name) DO UPDATE SET version = {number}"
        try:
            connection.executescript(f"BEGIN IMMEDIATE; {script}; {note}; COMMIT;")
        except sqlite3.Error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def _number(connection: sqlite3.Connection, query: str) -> int:
    return int(connection.execute(query).fetchone()[0])


def _wrong(message: str) -> UserError:
    return UserError(message, field="store.path")


def _damaged(path: Path, what: str) -> UserError:
    return _wrong(
        f"{path} is damaged, or no SQLite file ({what[:200]}); nothing was changed."
        " Put a copy back, or move it away and start with an empty one"
    )
