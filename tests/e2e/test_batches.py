"""Batches of a real server, by the SDK: through kills, restarts and drains each line is answered exactly once."""

from __future__ import annotations

import contextlib
import json
import random
import re
import signal
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import openai
import pytest

from stepwell.tests.e2e.serving import PATIENCE_S, Server, serving

CHAT: Final = "/v1/chat/completions"
KILLED = -int(signal.SIGKILL)


def lines(count: int) -> bytes:
    """Each asks for the echo of its own number."""
    made = []
    for number in range(count):
        body = {"model": "echo", "messages": [{"role": "user", "content": f"say {number}"}]}
        made.append(json.dumps({"custom_id": f"c{number}", "method": "POST", "url": CHAT, "body": body}))
    return "\n".join(made).encode()


@contextmanager
def storing(
    folder: Path, *more: str, step_us: int = 500, in_flight: int = 16
) -> Iterator[tuple[Server, openai.OpenAI]]:
    store = f'store={{path="{folder / "store.sqlite"}",lines_in_flight={in_flight}}}'
    with (
        serving("--set", store, *more, step_us=step_us) as server,
        openai.OpenAI(base_url=server.url, api_key="none", timeout=PATIENCE_S) as client,
    ):
        yield server, client


def begin(client: openai.OpenAI, count: int) -> str:
    file = client.files.create(file=("in.jsonl", lines(count)), purpose="batch")
    made = client.batches.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"n": str(count)}
    )
    assert made.status == "validating"
    return made.id


def wait(
    client: openai.OpenAI,
    id: str,
    *,
    completed: int | None = None,
    patience_s: float = PATIENCE_S,
    every_s: float = 0.01,
) -> Any:
    """Until so many lines are done, or the batch is."""
    deadline = time.monotonic() + patience_s
    while True:
        batch = client.batches.retrieve(id)
        counts = batch.request_counts
        assert counts is not None
        if batch.status in ("completed", "failed", "expired", "cancelled") or (
            completed is not None and counts.completed + counts.failed >= completed
        ):
            return batch
        assert time.monotonic() < deadline, batch
        time.sleep(every_s)


def check(client: openai.OpenAI, batch: Any, count: int) -> dict[str, str]:
    """Every line once, with its own answer; the lines of the output file by ``custom_id``."""
    assert batch.status == "completed"
    assert batch.error_file_id is None
    assert (batch.request_counts.total, batch.request_counts.completed) == (count, count)
    rows = client.files.content(batch.output_file_id).text.splitlines()
    found = {json.loads(row)["custom_id"]: row for row in rows}
    assert len(rows) == len(found) == count
    for number in range(count):
        body = json.loads(found[f"c{number}"])["response"]["body"]
        assert body["choices"][0]["message"]["content"] == f"say {number}"
    return found


def results(folder: Path) -> dict[int, bytes]:
    """What is on the disk of a server that is gone, by batch and line.  A copy is looked at: the next server finds what
    this one left."""
    for each in folder.glob("copy.sqlite*"):
        each.unlink()
    for each in folder.glob("store.sqlite*"):
        (folder / each.name.replace("store", "copy")).write_bytes(each.read_bytes())
    with closing(sqlite3.connect(folder / "copy.sqlite")) as db:
        return dict(db.execute("SELECT key, data FROM results"))


def recorded(folder: Path) -> dict[str, str]:
    """The same of one batch, by ``custom_id``."""
    rows = [data.decode().rstrip("\n") for data in results(folder).values()]
    return {json.loads(row)["custom_id"]: row for row in rows}


# ------------------------------------------------------------------------------------------------ kills


@pytest.mark.parametrize(
    ("kills", "count"), [(3, 400), pytest.param(50, 4000, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_each_line_once_through_kills_at_any_moment(tmp_path: Path, kills: int, count: int) -> None:
    """What was recorded when a server was killed is in the end what it was, to the last byte: it was not run again."""
    dice = random.Random(kills)
    id, known, before = "", dict[str, str](), 0
    for life in range(kills):
        with storing(tmp_path, step_us=2000) as (server, client):
            id = id or begin(client, count)
            if life % 3 != 2:  # otherwise while it is starting
                before = min(len(known) + dice.randrange(1, max(2 * count // kills, 2)), count)
                wait(client, id, completed=before)
            time.sleep(dice.uniform(0, 0.03))
            server.process.kill()
            assert server.process.wait(PATIENCE_S) == KILLED
        now = recorded(tmp_path)
        assert len(now) >= before
        assert known.items() <= now.items(), "a result was lost, or written again"
        known = now
    with storing(tmp_path) as (_, client):
        found = check(client, wait(client, id), count)
    assert known.items() <= found.items()
    assert len(known) > 0


@pytest.mark.parametrize(
    ("kills", "count"), [(2, 120), pytest.param(20, 400, marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_each_line_once_through_cancels_and_kills(tmp_path: Path, kills: int, count: int) -> None:
    """Batches are cancelled at any moment, and the server killed just before or after: what was recorded stays, and
    in the end each line is in one of the two files."""
    dice = random.Random(kills)
    batches: list[str] = []
    known = dict[int, bytes]()
    for life in range(kills):
        with storing(tmp_path, step_us=2000) as (server, client):
            batches.append(begin(client, count))
            if dice.random() < 0.7:
                wait(client, batches[0], completed=dice.randrange(1, count))
            if life % 2 == 0 or dice.random() < 0.5:
                with contextlib.suppress(openai.ConflictError):  # it has ended
                    client.batches.cancel(dice.choice(batches))
            time.sleep(dice.uniform(0, 0.05))
            server.process.kill()
            assert server.process.wait(PATIENCE_S) == KILLED
        now = results(tmp_path)
        assert known.items() <= now.items(), "a result was lost, or written again"
        known = now
    with storing(tmp_path) as (_, client):
        ends = {id: wait(client, id, patience_s=10 * PATIENCE_S) for id in batches}
        for batch in ends.values():
            if batch.status == "completed":
                check(client, batch, count)
            else:
                check_cancelled(client, batch, count)
    assert "cancelled" in {batch.status for batch in ends.values()}
    assert known.items() <= results(tmp_path).items()


def check_cancelled(client: openai.OpenAI, batch: Any, count: int) -> None:
    """Every line once: with its own answer, or with a word that it has none."""
    assert batch.status == "cancelled"
    texts = [client.files.content(id).text for id in (batch.output_file_id, batch.error_file_id) if id is not None]
    rows = [json.loads(row) for text in texts for row in text.splitlines()]
    assert sorted(row["custom_id"] for row in rows) == sorted(f"c{number}" for number in range(count))
    for row in rows:
        if row["error"] is not None:
            assert row["error"]["code"] == "batch_cancelled"
        else:
            said = row["response"]["body"]["choices"][0]["message"]["content"]
            assert said == f"say {row['custom_id'].removeprefix('c')}"


def test_a_drain_pauses_a_batch_and_the_next_start_resumes_it(tmp_path: Path) -> None:
    count = 300
    with storing(tmp_path, step_us=2000) as (server, client):
        id = begin(client, count)
        wait(client, id, completed=20)
        assert server.stop() == 0
    known = recorded(tmp_path)
    assert 20 <= len(known) < count
    with storing(tmp_path) as (_, client):
        assert known.items() <= check(client, wait(client, id), count).items()


def test_a_damaged_store_is_refused_at_the_start(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with storing(tmp_path) as (server, client):
        wait(client, begin(client, 50))
        server.stop()
    path = tmp_path / "store.sqlite"
    torn = bytearray(path.read_bytes())
    torn[4096 * 3 : 4096 * 3 + 100] = bytes(100)
    path.write_bytes(torn)
    with pytest.raises(AssertionError, match="it did not start"), storing(tmp_path):
        pass
    told = capfd.readouterr().err
    assert "store.path" in told
    assert "is damaged" in told
    assert "Traceback" not in told
    assert path.read_bytes() == torn


# ------------------------------------------------------------------------------------------------ the SDK


def test_the_sdk_from_end_to_end(tmp_path: Path) -> None:
    with storing(tmp_path, "--set", "wire.tenant_header=X-Tenant") as (_, client):
        file = client.files.create(
            file=("in.jsonl", lines(30)), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
        )
        assert (file.purpose, file.bytes, file.expires_at) == ("batch", len(lines(30)), file.created_at + 3600)
        assert client.files.wait_for_processing(file.id).status == "processed"
        assert client.files.content(file.id).read() == lines(30)
        made = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
        batch = wait(client, made.id)
        check(client, batch, 30)
        assert batch.usage is not None
        assert batch.usage.total_tokens == batch.usage.input_tokens + batch.usage.output_tokens > 0
        others = [
            client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h").id for _ in "abc"
        ]
        for other in others:
            wait(client, other)
        assert [each.id for each in client.batches.list(limit=2)] == [*others[::-1], made.id]
        assert [each.id for each in client.files.list(limit=2, order="asc", purpose="batch")] == [file.id]
        stranger = client.with_options(default_headers={"X-Tenant": "other"})
        for look in (
            lambda: stranger.files.retrieve(file.id),
            lambda: stranger.files.content(batch.output_file_id),
            lambda: stranger.files.delete(file.id),
            lambda: stranger.batches.retrieve(made.id),
            lambda: stranger.batches.cancel(made.id),
        ):
            with pytest.raises(openai.NotFoundError):
                look()
        assert list(stranger.files.list()) == []
        assert list(stranger.batches.list()) == []
        assert client.files.delete(file.id).deleted
        with pytest.raises(openai.NotFoundError):
            client.files.retrieve(file.id)


def test_the_sdk_cancels(tmp_path: Path) -> None:
    with storing(tmp_path, step_us=100_000) as (server, client):
        id = begin(client, 100)
        server.until(lambda: server.metric("vllm:num_requests_running") > 0)
        assert client.batches.cancel(id).status == "cancelling"
        batch = wait(client, id)
        assert batch.status == "cancelled"
        assert batch.error_file_id is not None
        rows = [json.loads(row) for row in client.files.content(batch.error_file_id).text.splitlines()]
        if batch.output_file_id is not None:
            rows += [json.loads(row) for row in client.files.content(batch.output_file_id).text.splitlines()]
        assert sorted(row["custom_id"] for row in rows) == sorted(f"c{number}" for number in range(100))
        server.until(lambda: server.idle)


# ------------------------------------------------------------------------------------------------ size


def memory_kib(server: Server, what: str) -> int:
    found = re.search(rf"{what}:\s+(\d+) kB", Path(f"/proc/{server.process.pid}/status").read_text())
    assert found is not None
    return int(found[1])


@pytest.mark.slow
def test_fifty_thousand_lines_take_little_memory(tmp_path: Path) -> None:
    """Neither while they are looked at, nor while they run, nor when they are gone on with."""
    count = 50_000
    with storing(tmp_path, step_us=100, in_flight=64) as (server, client):
        wait(client, begin(client, 200))
        before = memory_kib(server, "VmRSS")
        id = begin(client, count)
        wait(client, id, completed=count // 2, patience_s=600)
        assert memory_kib(server, "VmHWM") - before < 64 << 10
        server.process.kill()
        server.process.wait(PATIENCE_S)
    with storing(tmp_path, step_us=100, in_flight=64) as (server, client):
        check(client, wait(client, id, patience_s=600), count)
        assert memory_kib(server, "VmHWM") - before < 64 << 10
