"""The store's file: what was written stays, whatever happens to the process, and what is wrong with it is said."""

from __future__ import annotations

import contextlib
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="needs the extra `serve`")

from stepwell.core.errors import CapacityError, UserError
from stepwell.transports.errors import refusal_of
from stepwell.transports.store import worker
from stepwell.transports.store.database import Database, Schema, open_database

NOTES = Schema("notes", ("CREATE TABLE notes (id INTEGER PRIMARY KEY, text BLOB NOT NULL)",))
PATIENCE_S = 30


def inside(
    path: Path, test: Callable[[Database], Awaitable[None]], total_mib: int = 64, schema: Schema = NOTES
) -> None:
    async def main() -> None:
        database = open_database(path, [schema], total_mib)
        try:
            with anyio.fail_after(PATIENCE_S):
                await test(database)
        finally:
            database.close()

    anyio.run(main)


def put(id: int, text: bytes = b"") -> Callable[[sqlite3.Connection], None]:
    def work(db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO notes VALUES (?, ?)", (id, text))

    return work


def ids(db: sqlite3.Connection) -> list[int]:
    return [id for (id,) in db.execute("SELECT id FROM notes ORDER BY id")]


# ------------------------------------------------------------------------------------------------ writing


@given(st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=30))
@settings(max_examples=15, deadline=None)
def test_a_work_that_fails_undoes_itself_and_no_other(
    tmp_path_factory: pytest.TempPathFactory, works: list[tuple[int, bool]]
) -> None:
    """All are handed in at once, so that they share transactions; the model does one after another."""
    model: dict[int, None] = {}
    expected = []
    for id, raises in works:
        expected.append("said no" if raises else "twice" if id in model else "")
        if not raises:
            model[id] = None
    told: list[str] = [""] * len(works)

    async def test(database: Database) -> None:
        async def one(place: int, id: int, raises: bool) -> None:
            def work(db: sqlite3.Connection) -> None:
                if db.execute("SELECT 1 FROM notes WHERE id = ?", (id,)).fetchone() and not raises:
                    raise UserError("twice")
                put(-1 - place)(db)
                db.execute("DELETE FROM notes WHERE id = ?", (-1 - place,))
                if raises:
                    put(id + 100)(db)
                    raise UserError("said no")
                put(id)(db)

            try:
                await database.write(work)
            except UserError as error:
                told[place] = str(error)

        async with anyio.create_task_group() as tasks:
            for place, (id, raises) in enumerate(works):
                tasks.start_soon(one, place, id, raises)
        assert await database.read(ids) == sorted(model)

    inside(tmp_path_factory.mktemp("store") / "a.sqlite", test)
    assert told == expected


def test_the_loop_runs_no_sql_and_who_leaves_is_not_waited_for(tmp_path: Path) -> None:
    threads: list[str] = []

    async def test(database: Database) -> None:
        def slow(db: sqlite3.Connection) -> None:
            threads.append(threading.current_thread().name)
            time.sleep(0.05)
            put(1)(db)

        with anyio.move_on_after(0.001):
            await database.write(slow)
        assert await database.read(lambda db: threading.current_thread().name) == "stepwell-store-reader"
        await database.write(put(2))
        assert await database.read(ids) == [1, 2]

    inside(tmp_path / "a.sqlite", test)
    assert threads == ["stepwell-store-writer"]


def test_what_was_handed_in_is_written_before_it_closes(tmp_path: Path) -> None:
    async def test(database: Database) -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await database.write(put(1))
        with anyio.move_on_after(0.0001):
            await database.write(put(2))
        database.close()
        with pytest.raises(CapacityError, match="shutting down"):
            await database.write(put(3))

    path = tmp_path / "a.sqlite"
    inside(path, test)
    assert not path.with_name("a.sqlite-wal").exists()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert ids(connection) in ([1, 2], [2])


def test_a_disk_that_hangs_fills_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits is bounded, the rest is told so at once, and what was taken is written when the disk is back."""
    monkeypatch.setattr(worker, "MOST_WAITING", 20)
    back = threading.Event()

    async def test(database: Database) -> None:
        def hang(db: sqlite3.Connection) -> None:
            back.wait(PATIENCE_S)

        hanging, taken = database.post(hang), []
        await anyio.sleep(0.05)
        for id in range(20):
            taken.append(database.post(put(id)))
        for id in range(20, 100):
            with pytest.raises(CapacityError) as refused:
                database.post(put(id))
            assert (refused.value.code, refusal_of(refused.value).status) == ("store_busy", 503)
        back.set()
        await hanging
        for each in taken:
            await each
        assert await database.read(ids) == list(range(len(taken)))
        await database.write(put(500))

    inside(tmp_path / "a.sqlite", test)


def test_a_full_store_says_so_and_loses_nothing(tmp_path: Path) -> None:
    async def test(database: Database) -> None:
        kept: list[int] = []

        async def fill() -> None:
            for id in range(1000):
                await database.write(put(id, bytes(10_000)))
                kept.append(id)

        with pytest.raises(CapacityError) as told:
            await fill()
        assert told.value.code == "store_full"
        assert len(kept) > 20
        assert await database.read(ids) == kept
        await database.write_at_last(put(5000, bytes(10_000)))
        await database.write_at_last(lambda db: db.execute("DELETE FROM notes WHERE id < 10"))
        await database.write(put(6000, bytes(10_000)))
        assert await database.read(ids) == [*kept[10:], 5000, 6000]

    inside(tmp_path / "a.sqlite", test, total_mib=2)


WRITER = """
import anyio, sys
from stepwell.transports.store.database import open_database
from stepwell.tests.transports.test_database import NOTES, put

async def main():
    database = open_database(sys.argv[1], [NOTES], 64)
    first = int(sys.argv[2])
    async def one(id):
        await database.write(put(id, bytes(3000)))
        print(id, flush=True)
    for start in range(first, first + 100_000, 20):
        async with anyio.create_task_group() as tasks:
            for id in range(start, start + 20):
                tasks.start_soon(one, id)
anyio.run(main)
"""


def test_what_write_returned_from_is_there_after_a_kill(tmp_path: Path) -> None:
    path, seed = tmp_path / "a.sqlite", random.Random(7)
    said: list[int] = []
    for life in range(3):
        command = [sys.executable, "-c", WRITER, str(path), str(life * 100_000)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            said.append(int(process.stdout.readline()))
            time.sleep(seed.uniform(0.0, 0.2))
            process.send_signal(signal.SIGKILL)
            said += [int(line) for line in process.stdout if line.endswith("\n")]

    async def test(database: Database) -> None:
        assert set(said) <= set(await database.read(ids))

    inside(path, test)
    assert len(said) > 60


# ------------------------------------------------------------------------------------------------ opening


def refused(path: Path, schema: Schema = NOTES) -> str:
    with pytest.raises(UserError) as told:
        open_database(path, [schema], 64).close()
    assert told.value.field == "store.path"
    return str(told.value)


def test_scripts_are_run_once_and_in_order(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.sqlite"
    later = Schema("notes", (*NOTES.scripts, "ALTER TABLE notes ADD COLUMN more TEXT; UPDATE notes SET more = 'x'"))

    async def first(database: Database) -> None:
        await database.write(put(1))

    async def second(database: Database) -> None:
        assert await database.read(lambda db: db.execute("SELECT * FROM notes").fetchall()) == [(1, b"", "x")]

    inside(path, first)
    inside(path, second, schema=later)
    inside(path, second, schema=later)
    assert "newer release (notes 2, this one knows 1)" in refused(path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_script_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    broken = Schema("notes", (*NOTES.scripts, "CREATE TABLE more (x); INSERT INTO nowhere VALUES (1)"))
    assert "nowhere" in refused(path, broken)

    async def test(database: Database) -> None:
        names = await database.read(
            lambda db: db.execute("SELECT name FROM sqlite_master WHERE name = 'more'").fetchall()
        )
        assert names == []
        await database.write(put(1))

    inside(path, test)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"

    async def test(database: Database) -> None:
        assert "in use by another process" in refused(path)

    inside(path, test)
    inside(path, lambda database: anyio.sleep(0))


def test_another_programs_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (x)")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    assert "another program" in refused(path)
    assert path.read_bytes() == before


def test_what_is_no_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    path.write_text("these are notes of somebody's own " * 100)
    assert "damaged, or no SQLite file" in refused(path)
    assert path.read_text().startswith("these are notes")
    folder = tmp_path / "folder"
    folder.mkdir()
    assert "Is a directory" in refused(folder)


def test_damage_is_found_at_the_start(tmp_path: Path) -> None:
    """Whichever of its inner pages it is: the file is refused, or no page that counts was hit and all is there."""
    path = tmp_path / "a.sqlite"

    async def fill(database: Database) -> None:
        for id in range(200):
            await database.write(put(id, bytes([id]) * 600))

    inside(path, fill)
    whole = path.read_bytes()
    found = 0
    for page in range(1, len(whole) // 4096):
        torn = bytearray(whole)
        torn[page * 4096 : page * 4096 + 64] = random.Random(page).randbytes(64)
        path.write_bytes(torn)
        found += "damaged" in refused(path)
    assert found == len(whole) // 4096 - 1


def test_errors_that_are_nobodys_are_told(tmp_path: Path) -> None:
    """A disk that fails is no bug, and a wrong statement is one."""

    async def test(database: Database) -> None:
        def failing(db: sqlite3.Connection) -> None:
            raise sqlite3.OperationalError("disk I/O error")

        with pytest.raises(CapacityError, match="disk I/O error") as told:
            await database.write(failing)
        assert told.value.code == "store_failed"
        with pytest.raises(sqlite3.IntegrityError):
            await database.write(lambda db: (put(1)(db), put(1)(db)))
        assert await database.read(ids) == []

    inside(tmp_path / "a.sqlite", test)
