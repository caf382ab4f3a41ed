"""What batches cost: lines a second, the price of a commit, a start with a large store, chat's latency beside one.

    python -m stepwell.benchmarks.batches [lines|commit|restart|fcfs|chat-batch …] >> benchmarks/results/….jsonl

The echo backend behind the real server, one client on the loopback.  A line of JSON for each figure.
"""

from __future__ import annotations

import json
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import openai

from stepwell.tests.e2e.serving import serving
from stepwell.tests.e2e.test_batches import CHAT, begin, lines, memory_kib, storing, wait
from stepwell.transports.store import batches, files
from stepwell.transports.store.batches import NewBatch, Result
from stepwell.transports.store.database import open_database
from stepwell.transports.store.files import Room
from stepwell.transports.store.store import SCHEMAS

FOLDER = Path(tempfile.mkdtemp(prefix="batches"))
PATIENCE_S = 600
ROOM = Room(tenant_bytes=1 << 40, tenant_files=1000, file_bytes=1 << 40)


def say(what: str, **figures: Any) -> None:
    rounded = {name: round(value, 4) if isinstance(value, float) else value for name, value in figures.items()}
    print(json.dumps({"what": what, **rounded}), flush=True)


def _record(number: int, results: list[Result], db: sqlite3.Connection) -> None:
    batches.record(db, number, results)


def folder() -> Path:
    return Path(tempfile.mkdtemp(dir=FOLDER))


# ------------------------------------------------------------------------------------------------ lines a second


def lines_a_second() -> None:
    """Whole lines, with steps of 100 µs: what limits is the host."""
    for in_flight in (16, 64, 256):
        with storing(folder(), step_us=100, in_flight=in_flight) as (server, client):
            wait(client, begin(client, 500))
            before = memory_kib(server, "VmRSS")
            begun = time.monotonic()
            count = 5000
            wait(client, begin(client, count), patience_s=PATIENCE_S, every_s=0.25)
            took = time.monotonic() - begun
            cpu = sum(map(int, Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]))
            say(
                "lines",
                in_flight=in_flight,
                count=count,
                lines_per_s=count / took,
                server_cpu_s=cpu / 100,
                more_memory_mib=(memory_kib(server, "VmHWM") - before) / 1024,
            )


# ------------------------------------------------------------------------------------------------ a commit


def commit() -> None:
    """Results of 700 bytes, recorded by so many tasks at once."""

    async def measure(at_once: int) -> None:
        database = open_database(folder() / "a.sqlite", SCHEMAS, 4096)
        number = await database.write(lambda db: made(db, b"x"))
        await database.write(lambda db: batches.start(db, number, 1 << 20, "m", 0))
        count, next_line = 200 * min(at_once, 16) // 4, iter(range(1 << 20))
        waited: list[float] = []

        async def one() -> None:
            for _ in range(max(count // at_once, 5)):
                result = Result(next(next_line), False, b"x" * 700)
                begun = time.perf_counter()
                await database.write(partial(_record, number, [result]))
                waited.append(time.perf_counter() - begun)

        cpu, begun = time.process_time(), time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for _ in range(at_once):
                tasks.start_soon(one)
        took, cpu = time.perf_counter() - begun, time.process_time() - cpu
        database.close()
        done = len(waited)
        say(
            "commit",
            at_once=at_once,
            us_per_line=1e6 * took / done,
            cpu_us_per_line=1e6 * cpu / done,
            wait_ms_p50=1e3 * statistics.median(waited),
            wait_ms_p99=1e3 * sorted(waited)[int(0.99 * done)],
        )

    for at_once in (1, 16, 64, 256):
        anyio.run(measure, at_once)


def made(db: Any, content: bytes) -> int:
    number = files.begin(db, "default", 0, ROOM)
    for place in range(0, len(content), files.MOST_PIECE):
        piece = content[place : place + files.MOST_PIECE]
        files.append(db, number, place // files.MOST_PIECE, piece, "default", ROOM)
    file = files.end(db, number, "f", "batch", 1 << 40)
    asked = NewBatch(CHAT, file.id, "24h", 1 << 33)
    return batches.create(db, "default", asked, int(time.time()), 10).number


# ------------------------------------------------------------------------------------------------ the next start


def restart() -> None:
    """A batch of 50,000 lines, all of which but 100 have a result of 700 bytes: until the last ones are answered."""
    where, count = folder(), 50_000

    async def fill() -> None:
        database = open_database(where / "store.sqlite", SCHEMAS, 4096)
        number = await database.write(lambda db: made(db, lines(count)))
        await database.write(lambda db: batches.start(db, number, count, "m", 0))
        for start in range(0, count - 100, 1000):
            results = [Result(n, False, b"x" * 700 + b"\n") for n in range(start, min(start + 1000, count - 100))]
            await database.write(partial(_record, number, results))
        database.close()

    anyio.run(fill)
    size = (where / "store.sqlite").stat().st_size
    begun = time.perf_counter()
    database = open_database(where / "store.sqlite", SCHEMAS, 4096)
    opened = time.perf_counter() - begun
    database.close()
    with storing(where, step_us=100) as (server, client):
        begun = time.perf_counter()
        batch = wait(client, client.batches.list().data[0].id, patience_s=PATIENCE_S, every_s=0.1)
        took, lag = time.perf_counter() - begun, server.metric("stepwell:loop_lag_seconds")
        assert batch.request_counts.completed == count
    say("restart", count=count, store_mib=size / (1 << 20), open_s=opened, to_the_end_s=took, loop_lag_s=lag)


# ------------------------------------------------------------------------------------------------ chat beside it


def chat(policy: str) -> None:
    """A chat of 64 tokens every 100 ms for 5 s, alone and beside a batch that would fill the machine."""
    cost = "cost.options={base_ns=8000000,prefill_token_ns=20000,decode_request_ns=60000,kv_token_ps=0,swap_page_ns=0}"
    for in_flight in (0, 64, 256):
        store = f'store={{path="{folder() / "store.sqlite"}",lines_in_flight={max(in_flight, 1)}}}'
        seats = ("scheduler.running_limit=128", "scheduler.token_budget=512", f"scheduler.policy={policy}")
        settings = [word for each in (store, cost, *seats) for word in ("--set", each)]
        with (
            serving(*settings, cost=False) as server,
            openai.OpenAI(base_url=server.url, api_key="none", timeout=PATIENCE_S, max_retries=0) as client,
        ):
            id = ""
            if in_flight:
                long = json.loads(lines(1))["body"]["messages"][0]["content"] + "x" * 200
                file = client.files.create(file=("in.jsonl", longer(50_000, long)), purpose="batch")
                id = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h").id
                wait(client, id, completed=1)
            ttft = talk(client, 5.0)
            done = client.batches.retrieve(id).request_counts if id else None
        say(
            "chat",
            policy=policy,
            lines_in_flight=in_flight,
            ttft_ms_p50=1e3 * statistics.median(ttft),
            ttft_ms_p95=1e3 * sorted(ttft)[int(0.95 * len(ttft))],
            chats=len(ttft),
            lines_done=done.completed if done else 0,
        )


def longer(count: int, text: str) -> bytes:
    made = [json.loads(line) for line in lines(count).splitlines()]
    for each in made:
        each["body"]["messages"][0]["content"] += text
    return "\n".join(map(json.dumps, made)).encode()


def talk(client: openai.OpenAI, seconds: float) -> list[float]:
    """Times to the first token of chats that begin at their times, whoever is answered."""
    found: list[float] = []

    def one(due: float) -> None:
        said: Any = [{"role": "user", "content": "y" * 64}]
        for chunk in client.chat.completions.create(model="echo", messages=said, stream=True):
            if chunk.choices and chunk.choices[0].delta.content:
                found.append(time.monotonic() - due)
                break

    threads, begun = [], time.monotonic()
    for number in range(int(seconds * 10)):
        due = begun + number / 10
        time.sleep(max(due - time.monotonic(), 0))
        threads.append(threading.Thread(target=one, args=(due,)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    return found


PARTS: Mapping[str, Callable[[], None]] = {
    "lines": lines_a_second,
    "commit": commit,
    "restart": restart,
    "fcfs": partial(chat, "fcfs"),
    "chat-batch": partial(chat, "chat-batch"),
}

if __name__ == "__main__":
    for name in sys.argv[1:] or PARTS:
        PARTS[name]()
