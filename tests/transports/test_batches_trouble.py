"""Batches that end early, meet trouble on the way, or grow old: no line is lost, and none is answered twice."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from stepwell.tests.transports.batch_house import (
    CHAT,
    Seen,
    asking,
    begin,
    ended,
    jsonl,
    outcome,
    storing,
    text_of,
    until,
    upload,
)
from stepwell.tests.transports.house import client, error_of
from stepwell.transports.batches.runner import Runner
from stepwell.transports.http.app import create_app
from stepwell.transports.service import Service
from stepwell.transports.store import batches
from stepwell.transports.store.batches import BatchRow

# ------------------------------------------------------------------------------------------------ early ends


SLOW = {"step_us": 20_000, "lengths": dict.fromkeys(range(1, 2000), 200)}


def held_up(folder: Path, store: dict[str, Any] | None = None, **more: Any) -> Service:
    """Answers take seconds, so that a batch is never done before the test is."""
    return storing(folder, {"lines_in_flight": 3, **(store or {})}, **{**SLOW, **more})


def test_cancelling_stops_what_runs(tmp_path: Path) -> None:
    service = held_up(tmp_path)
    with client(service) as server:
        made = begin(server, [asking(number) for number in range(20)])
        until(lambda: service.metrics.running > 0)
        assert server.get(f"/v1/batches/{made['id']}").json()["status"] == "in_progress"
        file = server.get("/v1/files").json()["data"][-1]["id"]
        assert error_of(server.delete(f"/v1/files/{file}"))[:2] == (409, "file_in_use")
        told = server.post(f"/v1/batches/{made['id']}/cancel").json()
        assert told["status"] == "cancelling"
        batch = ended(server, made["id"])
        assert batch["status"] == "cancelled"
        assert batch["cancelling_at"] <= batch["cancelled_at"]
        good, bad = outcome(server, batch)
        assert len(good) + len(bad) == 20
        assert {row["error"]["code"] for row in bad.values()} == {"batch_cancelled"}
        until(lambda: not service.metrics.running)
        assert error_of(server.post(f"/v1/batches/{made['id']}/cancel"))[:2] == (409, "batch_ended")
        assert server.delete(f"/v1/files/{file}").status_code == 200


def test_cancelled_before_anybody_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the list as soon as it is written, which is before there is a task for it."""
    begins = Runner.begin

    def cancelled(runner: Runner, row: BatchRow) -> None:
        runner._store.database.post(lambda db: batches.cancel(db, row.tenant, row.id, row.created_at))
        begins(runner, row)

    monkeypatch.setattr(Runner, "begin", cancelled)
    with client(storing(tmp_path)) as server:
        batch = ended(server, begin(server, [asking(number) for number in range(3)])["id"])
        assert batch["status"] == "cancelled"
        assert outcome(server, batch)[0] == {}


def test_a_batch_ends_with_its_window(tmp_path: Path) -> None:
    service = held_up(tmp_path, {"windows": ["24h", "30m"]})
    assert service.store is not None
    ahead = [0.0]
    service.store._now = lambda: time.time() + ahead[0]
    with client(service) as server:
        short = begin(server, [asking(number) for number in range(20)], completion_window="30m")
        long = begin(server, [asking(number) for number in range(3)])
        until(lambda: service.metrics.running > 0)
        ahead[0] = 1801.0
        batch = ended(server, short["id"])
        assert batch["status"] == "expired"
        assert batch["expired_at"] >= batch["expires_at"]
        good, bad = outcome(server, batch)
        assert len(good) + len(bad) == 20
        row = bad["c19"]
        assert (row["response"], row["error"]["code"]) == (None, "batch_expired")
        assert server.get(f"/v1/batches/{long['id']}").json()["status"] == "in_progress"


def test_unfinished_batches_are_bounded(tmp_path: Path) -> None:
    with client(held_up(tmp_path, {"tenant_batches": 2})) as server:
        first = begin(server, [asking(0)])
        begin(server, [asking(0)])
        body = {"input_file_id": first["input_file_id"], "endpoint": CHAT, "completion_window": "24h"}
        assert error_of(server.post("/v1/batches", json=body))[:2] == (429, "too_many_batches")
        server.post(f"/v1/batches/{first['id']}/cancel")
        ended(server, first["id"])
        assert server.post("/v1/batches", json=body).status_code == 200


# ------------------------------------------------------------------------------------------------ trouble


@pytest.mark.parametrize("bound", ["streams", "line"])
def test_lines_that_are_refused_for_want_of_room_come_again(tmp_path: Path, bound: str) -> None:
    """SC-7: the queue is full of others' work, or of their own."""
    more: dict[str, Any]
    more = {"server": {"max_streams": 2}} if bound == "streams" else {"scheduler": {"max_waiting": 3}}
    seen = Seen()
    service = storing(tmp_path, {"lines_in_flight": 8}, step_us=500, observers=[seen], **more)
    with client(service) as server:
        batch = ended(server, begin(server, [asking(number) for number in range(30)])["id"])
        good, bad = outcome(server, batch)
        assert (len(good), len(bad)) == (30, 0)
        runner = server.app.state.batches  # type: ignore[attr-defined]
        assert runner._allowance.held == 0
        assert runner.tally().lines == {"waiting": 0, "running": 0}


def test_a_bug_in_one_line_is_that_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = storing(tmp_path)
    app = create_app(service)
    ask = app.state.batches._ask
    real = ask.endpoints[CHAT]

    async def sometimes(request: Any) -> Any:
        if b"say 3" in await request.body():
            raise ZeroDivisionError("a bug")
        return await real(request)

    ask.endpoints[CHAT] = sometimes
    with TestClient(app) as server:
        good, bad = outcome(server, ended(server, begin(server, [asking(number) for number in range(6)])["id"]))
        assert (len(good), set(bad)) == (5, {"c3"})
        assert bad["c3"]["response"]["status_code"] == 500
        assert "a bug" not in str(bad["c3"])


def test_what_a_stopped_server_leaves_the_next_one_does(tmp_path: Path) -> None:
    """No line that has a result is run again: the second server is handed exactly the others."""
    total, done = 60, 0
    with client(held_up(tmp_path, lengths=None, step_us=3000)) as server:
        made = begin(server, [asking(number) for number in range(total)])
        until(lambda: server.get(f"/v1/batches/{made['id']}").json()["request_counts"]["completed"] >= 10)
    seen = Seen()
    with client(storing(tmp_path, observers=[seen])) as server:
        batch = ended(server, made["id"])
        good, bad = outcome(server, batch)
        assert (len(good), len(bad)) == (total, 0)
        assert {id: text_of(row) for id, row in good.items()} == {f"c{n}": f"say {n}" for n in range(total)}
        done = total - len(seen.submitted)
    assert 10 <= done < total
    with client(storing(tmp_path)) as server:
        assert server.get(f"/v1/batches/{made['id']}").json() == batch
        assert outcome(server, batch) == (good, bad)


def test_draining_begins_no_line_and_ends_those_that_run(tmp_path: Path) -> None:
    service = held_up(tmp_path, lengths=None, step_us=3000)
    with client(service) as server:
        made = begin(server, [asking(number) for number in range(40)])
        until(lambda: server.get(f"/v1/batches/{made['id']}").json()["request_counts"]["completed"] >= 3)
        service.drain()
        runner = server.app.state.batches  # type: ignore[attr-defined]
        until(lambda: not runner._jobs)
        assert not service.metrics.running
        counts = server.get(f"/v1/batches/{made['id']}").json()["request_counts"]
        assert 3 <= counts["completed"] < 40
        assert counts["failed"] == 0
    with client(storing(tmp_path)) as server:
        good, bad = outcome(server, ended(server, made["id"]))
        assert (len(good), len(bad)) == (40, 0)


def test_a_full_store_holds_a_batch_up_and_loses_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.transports.batches.runner.MOST_PATIENCE_S", 0.05)
    service = storing(tmp_path, {"total_mib": 2, "lines_in_flight": 16})
    with client(service) as server:
        ballast = [upload(server, bytes(200_000)).json()["id"] for _ in range(4)]
        made = begin(server, [asking(number) for number in range(300)])
        runner = server.app.state.batches  # type: ignore[attr-defined]
        until(lambda: upload(server, bytes(100_000)).status_code == 503 and runner._allowance.held == 16)
        held = server.get(f"/v1/batches/{made['id']}").json()
        assert held["status"] == "in_progress"
        for id in ballast:
            assert server.delete(f"/v1/files/{id}").status_code == 200
        good, bad = outcome(server, ended(server, made["id"]))
        assert (len(good), len(bad)) == (300, 0)


def test_a_tenant_over_its_quota_gets_errors_that_say_so(tmp_path: Path) -> None:
    with client(storing(tmp_path, {"tenant_mib": 1})) as server:
        upload(server, bytes(650_000))
        batch = ended(server, begin(server, [asking(number, padding="x" * 900) for number in range(300)])["id"])
        assert batch["status"] == "completed"
        good, bad = outcome(server, batch)
        assert good
        assert {row["error"]["code"] for row in bad.values()} == {"storage_quota_exceeded"}


def test_tenants_take_turns(tmp_path: Path) -> None:
    """One with a thousand lines does not hold another's ten up, and one's second batch waits for its first."""
    seen = Seen()
    service = storing(tmp_path, {"lines_in_flight": 2}, wire={"tenant_header": "X-Tenant"}, observers=[seen])
    with client(service) as server:

        def hand_in(tenant: str, count: int) -> str:
            headers = {"X-Tenant": tenant}
            file = upload(server, jsonl([asking(n) for n in range(count)]), headers).json()["id"]
            body = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
            return str(server.post("/v1/batches", json=body, headers=headers).json()["id"])

        hand_in("large", 300)
        until(lambda: len(seen.submitted) > 10)
        id = hand_in("small", 20)
        before = len(seen.submitted)
        until(lambda: server.get(f"/v1/batches/{id}", headers={"X-Tenant": "small"}).json()["status"] == "completed")
        tenants = [each.tenant for each in seen.submitted[before:]]
        last = len(tenants) - 1 - tenants[::-1].index("small")
        first = tenants.index("small")
        assert tenants[first : last + 1].count("large") <= 25


# ------------------------------------------------------------------------------------------------ age


def test_what_is_old_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.transports.batches.runner.SWEEP_S", 0.05)
    service = storing(tmp_path)
    assert service.store is not None
    ahead = [0.0]
    service.store._now = lambda: time.time() + ahead[0]
    with client(service) as server:
        batch = ended(server, begin(server, [asking(0)])["id"])
        kept = upload(server, b"x", **{"expires_after[seconds]": "2592000", "expires_after[anchor]": "created_at"})
        ahead[0] = 86_400 * 29
        later = upload(server, b"x").json()["id"]
        assert len(server.get("/v1/files").json()["data"]) == 4
        ahead[0] = 86_400 * 30 + 5
        until(lambda: [each["id"] for each in server.get("/v1/files").json()["data"]] == [later])
        assert error_of(server.get(f"/v1/files/{kept.json()['id']}"))[0] == 404
        assert server.get(f"/v1/batches/{batch['id']}").status_code == 200
        ahead[0] = 86_400 * 31 + 5
        until(lambda: server.get(f"/v1/batches/{batch['id']}").status_code == 404)
        store = service.store
        until(lambda: store.file_bytes == 1)
