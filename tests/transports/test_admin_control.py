"""What an operator does while requests run: hold, drain, end, empty the cache; and that a journal replays all of it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from stepwell.sim.replay import replay
from stepwell.tests.transports.house import Call, chat, error_of, make_service, until, visit

from starlette.testclient import TestClient  # isort: skip
from starlette.types import ASGIApp  # isort: skip
from stepwell.cli.journal_live import LiveJournal  # isort: skip
from stepwell.core.build_live import serving_scheduler  # isort: skip
from stepwell.core.config_types import Digest  # isort: skip
from stepwell.core.errors import CapacityError  # isort: skip
from stepwell.transports.gateway.digests import digest_of  # isort: skip
from stepwell.transports.http.admin_app import create_admin_app  # isort: skip
from stepwell.transports.http.admin_guard import admin_guards  # isort: skip
from stepwell.transports.http.admin_settings import MASK, masked  # isort: skip
from stepwell.transports.http.app import create_app  # isort: skip
from stepwell.transports.service import Service  # isort: skip
from stepwell.transports.wants import Wants  # isort: skip
from stepwell.transports.wire import Standing  # isort: skip

TOKEN = "sw-" + "t" * 43
BEARER = {"Authorization": f"Bearer {TOKEN}"}
LONG = {0: 10_000} | dict.fromkeys(range(1, 50), 10000)
"""Answers that do not end by themselves."""


def here(service: Service) -> TestClient:
    return TestClient(create_app(service), client=("127.0.0.1", 50_000), base_url="http://127.0.0.1:8000")


async def ask(app: ASGIApp, method: str, path: str, body: Any = None, query: str = "") -> tuple[int, Any]:
    """One request from this machine, answered whole."""
    sent: list[dict[str, Any]] = []
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(b"host", b"127.0.0.1")],
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1),
        "scheme": "http",
        "root_path": "",
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(body).encode() if body is not None else b""}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    text = b"".join(each.get("body", b"") for each in sent)
    return sent[0]["status"], json.loads(text)


def streams(count: int, **fields: Any) -> list[Call]:
    return [Call("/v1/chat/completions", chat("x" * 12, stream=True, **fields)) for _ in range(count)]


def with_streams(
    service: Service, calls: list[Call], test: Callable[[ASGIApp], Awaitable[None]], begun: bool = True
) -> None:
    """Run ``test`` while ``calls`` are in progress, and wait for their ends."""

    async def main(app: ASGIApp) -> None:
        async with anyio.create_task_group() as tasks:
            for call in calls:
                tasks.start_soon(call.run, app)
            if begun:
                await until(lambda: all(len(call.parts) > 2 for call in calls))
            await test(app)

    visit(service, main)


# ------------------------------------------------------------------------------------------------ pause


def test_hc_1_a_paused_engine_lives_is_not_ready_and_goes_on_where_it_was() -> None:
    """The answers are those of an undisturbed run, and their clients were told."""
    service = make_service(step_us=300, lengths={1: 200, 2: 200})
    calls = streams(2)

    async def test(app: ASGIApp) -> None:
        status, told = await ask(app, "POST", "/admin/pause", {"why": "weights"})
        assert (status, told["paused"], told["running"], told["ready"]) == (200, True, 2, "paused")
        await until(lambda: not service.scheduler.state.inflight)
        steps = service.scheduler.state.next_step
        assert (await ask(app, "GET", "/health"))[0] == 200
        assert await ask(app, "GET", "/ready") == (503, {"status": "unavailable", "reason": "paused", "warnings": []})
        await anyio.sleep(0.05)
        assert service.scheduler.state.next_step == steps
        assert service.metrics.stalled_ns(1 << 60) == 0
        assert "vllm:num_requests_running" in service.metrics.exposition().decode()
        status, told = await ask(app, "POST", "/admin/resume")
        assert (status, told["paused"], told["ready"]) == (200, False, "yes")
        assert (await ask(app, "GET", "/ready"))[0] == 200

    with_streams(service, calls, test)
    for call in calls:
        assert ": paused by the operator\n\n" in call.text
        assert ": resumed\n\n" in call.text
        said = [json.loads(line[6:]) for line in call.text.split("\n") if line.startswith("data: {")]
        assert (
            "".join(each["choices"][0]["delta"].get("content", "") for each in said if each["choices"])
            == ("x" * 12 * 17)[:200]
        )


def test_whoever_comes_during_a_pause_waits_and_may_leave() -> None:
    service = make_service()
    calls = streams(3)

    async def test(app: ASGIApp) -> None:
        await until(lambda: len(service.scheduler.state.waiting) == 3)
        calls[0].left.set()
        await until(lambda: len(service.scheduler.state.waiting) == 2)
        status, told = await ask(app, "GET", "/admin/requests")
        assert (status, told["total"]) == (200, 2)
        assert told["requests"][0]["why"].startswith("an operator has paused the engine")
        await ask(app, "POST", "/admin/resume")

    async def main(app: ASGIApp) -> None:
        await ask(app, "POST", "/admin/pause")
        async with anyio.create_task_group() as tasks:
            for call in calls:
                tasks.start_soon(call.run, app)
            await test(app)

    visit(service, main)
    assert [call.whole for call in calls] == [False, True, True]


# ------------------------------------------------------------------------------------------------ abort


@pytest.mark.parametrize(
    ("body", "count"),
    [({"request": 2}, 1), ({"tenant": "default"}, 3), ({"class": "chat"}, 2), ({"all": True, "why": "fire"}, 3)],
)
def test_requests_are_ended_by_name_by_tenant_by_class_or_all(body: dict[str, Any], count: int) -> None:
    service = make_service(step_us=300, lengths=LONG, memory={"pages": 30_000})
    calls = [*streams(2), *streams(1, service_tier="flex")]

    async def test(app: ASGIApp) -> None:
        status, told = await ask(app, "POST", "/admin/abort", body)
        assert (status, told["aborted"], len(told["requests"])) == (200, count, count)
        await until(lambda: sum(call.whole for call in calls) == count)
        await ask(app, "POST", "/admin/abort", {"all": True})

    with_streams(service, calls, test)
    assert all('"code":"aborted"' in call.text and call.text.endswith("data: [DONE]\n\n") for call in calls)
    assert service.metrics.ends["abort"] == 3


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({}, 400, "invalid_value"),
        ({"all": True, "class": "chat"}, 400, "invalid_value"),
        ({"request": 77}, 404, "request_not_found"),
        ({"tenant": "nobody"}, 404, "tenant_not_found"),
        ({"class": "nobody"}, 400, "invalid_value"),
        ({"everything": True}, 400, "invalid_value"),
    ],
)
def test_an_abort_says_whom_it_means(body: dict[str, Any], status: int, code: str) -> None:
    with here(make_service()) as http:
        assert error_of(http.post("/admin/abort", json=body))[:2] == (status, code)
        for nobody in ({"class": "batch"}, {"all": True}):
            assert http.post("/admin/abort", json=nobody).json() == {"aborted": 0, "requests": []}


@pytest.mark.parametrize("body", [{"request": 1}, {"tenant": "default"}, {"class": "chat"}, {"all": True}])
def test_a_request_that_the_scheduler_has_not_heard_of_is_ended_too(body: dict[str, Any]) -> None:
    service = make_service(step_us=300, lengths=LONG, memory={"pages": 30_000})

    async def test(app: ASGIApp) -> None:
        generation = service.start([[1, 2, 3]], Wants(standing=Standing(klass="chat")))
        assert not service.scheduler.state.requests
        assert (await ask(app, "POST", "/admin/abort", body))[1]["aborted"] == 1
        with pytest.raises(CapacityError, match="an operator ended this request"):
            await generation.accepted()
        generation.close()

    visit(service, test)


def test_a_request_that_is_aborted_and_not_streamed_gets_503() -> None:
    service = make_service(step_us=300, lengths=LONG, memory={"pages": 30_000})
    call = Call("/v1/chat/completions", chat("hello"))

    async def test(app: ASGIApp) -> None:
        await until(lambda: bool(service.scheduler.state.requests))
        assert (await ask(app, "POST", "/admin/abort", {"all": True, "why": "maintenance"}))[0] == 200

    with_streams(service, [call], test, begun=False)
    assert call.status == 503
    assert json.loads(call.text)["error"]["message"] == "an operator ended this request: maintenance"


# ------------------------------------------------------------------------------------------------ the cache


def test_a_reset_says_what_it_freed_and_nothing_is_found_after_it() -> None:
    with here(make_service(memory={"allocator": "prefix"})) as http:

        def found() -> int:
            usage = http.post("/v1/chat/completions", json=chat("s" * 40, max_tokens=1)).json()["usage"]
            return int(usage["prompt_tokens_details"]["cached_tokens"])

        assert [found(), found()] == [0, 36]
        told = http.post("/admin/cache/reset", json={"why": "a try"}).json()
        assert told["freed_pages"] >= 9
        assert told["pages_in_use"] == 0
        assert found() == 0
        assert http.post("/admin/cache/reset").json()["freed_pages"] >= 9
        assert http.post("/admin/cache/reset").json()["freed_pages"] == 0


def test_a_reset_is_refused_where_there_is_no_cache() -> None:
    with here(make_service(memory={"allocator": "paged"})) as http:
        answer = http.post("/admin/cache/reset")
    assert error_of(answer)[:2] == (409, "no_cache")
    assert "'paged' reuses no prompts" in answer.text


# ------------------------------------------------------------------------------------------------ journal


@pytest.mark.parametrize("allocator", ["prefix", "radix", "paged"])
def test_whatever_an_operator_did_the_journal_replays(tmp_path: Path, allocator: str) -> None:
    """Paused, resumed, aborted, reset, the policy changed; and the journal begun in the middle, and again."""
    service, journal = _journalled(tmp_path, memory={"allocator": allocator, "pages": 4000})
    calls = streams(6)
    paths: list[str] = []

    async def test(app: ASGIApp) -> None:
        status, told = await ask(app, "POST", "/admin/journal", {"on": True})
        assert (status, told["on"], told["turns"]) == (200, True, 0)
        paths.append(told["path"])
        for act, body in (
            ("pause", {"why": "a look"}),
            ("abort", {"request": 2}),
            ("cache/reset", None),
            ("resume", None),
            ("abort", {"request": 3}),
            ("cache/reset", None),
        ):
            status, _ = await ask(app, "POST", f"/admin/{act}", body)
            assert status == (409 if act == "cache/reset" and allocator == "paged" else 200)
            await anyio.sleep(0.002)
        assert (await ask(app, "PUT", "/admin/scheduler", {"policy": "sjf"}))[0] == 200
        status, told = await ask(app, "POST", "/admin/journal", {"rotate": True})
        assert told["segment"] != told["path"]
        await anyio.sleep(0.005)
        assert (await ask(app, "POST", "/admin/journal", {"on": False}))[1]["on"] is False
        await anyio.sleep(0.005)
        paths.append((await ask(app, "POST", "/admin/journal", {"on": True}))[1]["path"])
        await ask(app, "POST", "/admin/abort", {"all": True})

    with_streams(service, calls, test)
    journal.stop()
    assert len(set(paths)) == 2
    for path in paths:
        report = replay(Path(path))
        assert (report.difference, report.gaps) == (None, 0)
        assert report.turns > 0
    assert report.unfinished == 0


def _journalled(folder: Path, **more: Any) -> tuple[Service, LiveJournal]:
    """As ``stepwell serve`` puts it together; the journal is off."""
    bare = make_service(step_us=300, lengths=LONG, **more)
    scheduler = serving_scheduler(bare.config)
    journal = LiveJournal(folder, bare.config, scheduler)
    service = Service(bare.config, bare.model, scheduler=scheduler, observers=[journal.observe])
    service.journal = journal
    return service, journal


def test_a_journal_needs_a_folder(tmp_path: Path) -> None:
    with here(make_service()) as http:
        assert http.get("/admin/journal").json() == {"on": False, "folder": None}
        assert error_of(http.post("/admin/journal", json={"on": True}))[:2] == (409, "no_journal_folder")
    service, _ = _journalled(tmp_path)
    with here(service) as http:
        assert error_of(http.post("/admin/journal", json={}))[::2] == (400, "on")
        assert error_of(http.post("/admin/journal", json={"rotate": True}))[::2] == (400, "rotate")
        assert http.get("/admin/journal").json()["lost_turns"] == 0


# ------------------------------------------------------------------------------------------------ settings


def test_the_settings_are_shown_with_their_origins_and_without_secrets() -> None:
    digest: Digest = digest_of(TOKEN.encode())
    service = make_service(keys=[{"name": "web", "digest": digest}])
    service.origin = lambda path: "command line" if path == "server.port" else "default"
    app = create_app(service, admin_guards(service.config.admin, [TOKEN]))
    with TestClient(app) as http:
        answer = http.get("/admin/config", headers=BEARER)
    told = answer.json()
    assert told["origins"] == {"server.port": "command line"}
    assert told["config"]["keys"][0]["digest"] == MASK
    assert told["config"]["scheduler"]["policy"] == "fcfs"
    assert digest not in answer.text
    assert masked({"a": ["http://user:secret@host/x", digest]}) == {"a": [f"http://{MASK}@host/x", MASK]}


# ------------------------------------------------------------------------------------------------ who may


def test_a_token_opens_from_anywhere_and_nothing_else_does(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    service = make_service(admin={"token_file": str(file)})
    app = create_app(service, admin_guards(service.config.admin))
    with TestClient(app, client=("10.0.0.7", 1), base_url="http://example.com") as http:
        assert http.get("/admin/scheduler", headers=BEARER).status_code == 200
        assert http.get("/admin/requests", headers=BEARER).json() == {"total": 0, "shown": 0, "requests": []}
        for headers in ({}, {"Authorization": "Bearer " + "x" * 46}):
            assert error_of(http.get("/admin/scheduler", headers=headers))[0] == 401


def test_with_a_port_of_its_own_the_public_one_has_no_admin_routes() -> None:
    service = make_service(admin={"port": 0, "metrics": True})
    guards = admin_guards(service.config.admin, [TOKEN])
    with TestClient(create_app(service, guards)) as http:
        for path in ("/admin/scheduler", "/admin/requests", "/metrics"):
            assert http.get(path, headers=BEARER).status_code == 404
        own = TestClient(create_admin_app(service, guards))
        assert own.get("/admin/scheduler", headers=BEARER).status_code == 200
        assert own.get("/admin/scheduler").status_code == 401
        assert own.get("/ready").json()["status"] == "ok"
        assert "vllm:num_requests_running" in own.get("/metrics").text
        assert own.post("/v1/chat/completions", json=chat("hello")).status_code == 404


def test_a_drain_takes_nothing_new_and_says_how_far_it_is() -> None:
    service = make_service(step_us=300, lengths=LONG, memory={"pages": 30_000})
    calls = streams(1)

    async def test(app: ASGIApp) -> None:
        assert (await ask(app, "GET", "/admin/drain"))[1]["draining"] is False
        status, told = await ask(app, "POST", "/admin/drain")
        assert (status, told["draining"], told["answers"]) == (200, True, 1)
        assert (await ask(app, "GET", "/ready"))[1]["reason"] == "draining"
        await ask(app, "POST", "/admin/abort", {"all": True})

    with_streams(service, calls, test)
