"""``/admin/events``: a listener hears what was decided, from where it left off, and is told what it missed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import anyio
import pytest

from stepwell.core.events import Submitted
from stepwell.tests.transports.house import Call, chat, error_of, make_service, until, visit

from starlette.testclient import TestClient  # isort: skip
from starlette.types import ASGIApp  # isort: skip
from stepwell.transports.http.admin_events import Filter, Wanted  # isort: skip
from stepwell.transports.http.app import create_app  # isort: skip
from stepwell.transports.service import Service  # isort: skip

Frame = tuple[str, dict[str, Any]]


class Listener:
    """One connection, read until it is left."""

    def __init__(self, query: str = "", headers: Mapping[str, str] | None = None, method: str = "GET") -> None:
        self.text = ""
        self.status = 0
        self.left = anyio.Event()
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "path": "/admin/events",
            "raw_path": b"/admin/events",
            "query_string": query.encode(),
            "headers": [(b"host", b"127.0.0.1")] + [(k.encode(), v.encode()) for k, v in (headers or {}).items()],
            "server": ("127.0.0.1", 80),
            "client": ("127.0.0.1", 1),
            "scheme": "http",
            "root_path": "",
        }

    async def run(self, app: ASGIApp) -> None:
        await app(self._scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        self.status = message.get("status", self.status)
        self.text += message.get("body", b"").decode()

    @property
    def frames(self) -> list[Frame]:
        blocks = [block.split("\n") for block in self.text.split("\n\n") if block and not block.startswith(":")]
        named = [{key: value for key, _, value in (line.partition(": ") for line in block)} for block in blocks]
        return [(each["event"], json.loads(each["data"])) for each in named]

    def kinds(self) -> list[str]:
        told = [turn for name, turn in self.frames if name == "turn"]
        return [each["kind"] for turn in told for each in (*turn["events"], *turn["decisions"])]


def heard(service: Service, listener: Listener, *calls: Call, before: bool = False) -> None:
    """What a listener hears of ``calls``; with ``before`` it comes only after them."""

    async def test(app: ASGIApp) -> None:
        async def ask() -> None:
            for call in calls:
                await call.run(app)

        async with anyio.create_task_group() as tasks:
            if before:
                await ask()
            tasks.start_soon(listener.run, app)
            await until(lambda: bool(listener.frames))
            if not before:
                await ask()
            await anyio.sleep(0.3)
            listener.left.set()
        assert service.decisions.listeners == 0

    visit(service, test)


def test_head_of_the_stream_is_only_its_head() -> None:
    """It holds no listener's place, and lets nobody wait for an end that does not come."""
    service = make_service(admin={"event_listeners": 1})

    async def test(app: ASGIApp) -> None:
        for _ in range(3):
            listener = Listener(method="HEAD")
            await listener.run(app)
            assert (listener.status, listener.text) == (200, "")
        assert service.decisions.listeners == 0

    visit(service, test)


def call(content: str = "hello", **fields: Any) -> Call:
    return Call("/v1/chat/completions", chat(content, **fields))


def test_a_listener_hears_every_turn_in_order_and_no_text() -> None:
    listener = Listener()
    service = make_service()
    heard(service, listener, call("secret words"))
    (first, hello), *turns = listener.frames
    assert (first, hello["policy"], hello["next"]) == ("hello", "fcfs", 1)
    numbers = [turn["turn"] for _, turn in turns]
    assert numbers == list(range(1, service.decisions.turn + 1))
    kinds = listener.kinds()
    assert kinds[:2] == ["submit", "admitted"]
    assert kinds[-1] == "finished"
    assert "secret" not in listener.text
    launches = [each for _, turn in turns for each in turn["decisions"] if each["kind"] == "launch"]
    assert launches[0]["prefill_tokens"] == 12


def test_filters_and_places() -> None:
    listener = Listener("kinds=submit,finished&class=batch")
    heard(make_service(), listener, call(), call(service_tier="flex"))
    assert listener.kinds() == ["submit", "finished"]
    again = Listener("request=2&kinds=finished&after=0")
    heard(make_service(), again, call(), call(), before=True)
    assert again.kinds() == ["finished"]
    back = Listener("kinds=submit", {"last-event-id": "1"})
    heard(make_service(), back, call(), call(), before=True)
    assert back.kinds() == ["submit"], "the first one was in turn 1"


def test_what_the_ring_no_longer_has_is_counted() -> None:
    listener = Listener("after=0")
    service = make_service(admin={"events_kept": 16})
    heard(service, listener, call("x" * 60), before=True)
    turns = service.decisions.turn
    names = [name for name, _ in listener.frames]
    assert names == ["hello", "missed", *["turn"] * 16]
    assert listener.frames[1][1] == {"turns": turns - 16, "next": turns - 15}


@pytest.mark.parametrize("query", ["after=x", "request=1.5", "colour=red"])
def test_what_is_asked_wrongly_is_refused(query: str) -> None:
    app = create_app(make_service(admin={"event_listeners": 0}))
    http = TestClient(app, client=("127.0.0.1", 1), base_url="http://127.0.0.1")
    assert error_of(http.get("/admin/events"))[:2] == (429, "too_many_listeners")
    app = create_app(make_service())
    http = TestClient(app, client=("127.0.0.1", 1), base_url="http://127.0.0.1")
    assert error_of(http.get(f"/admin/events?{query}"))[0] == 400


def test_what_is_kept_holds_on_to_no_long_prompt() -> None:
    """Keys of pages are told to nobody, and would take a quarter of a MiB of every long prompt."""
    service = make_service(memory={"allocator": "prefix"})

    async def test(app: ASGIApp) -> None:
        for size in (4, 400):
            await Call("/v1/completions", {"prompt": "x" * size, "max_tokens": 1}).run(app)

    visit(service, test)
    kept = [event for _, turn in service.decisions.since(1, 1000) for event in turn.events]
    came = [each for each in kept if isinstance(each, Submitted)]
    assert [(each.prompt_tokens, len(each.keys)) for each in came] == [(4, 1), (400, 0)]


def test_a_slow_listener_remembers_nobody_whose_end_it_missed() -> None:
    """A filter that knows whom it has heard of must forget those of whom it will hear no more."""
    service = make_service(admin={"events_kept": 16})
    filtered = Filter(service, Wanted(tenant="default"))

    async def test(app: ASGIApp) -> None:
        for _ in range(40):
            start = service.decisions.turn + 1
            await call().run(app)
            heard = [each for _, each in service.decisions.since(start, 1)]
            filtered.events([event for turn in heard for event in turn.events])
            filtered.missed(each for _, each in service.decisions.since(service.decisions.first, 16))

    visit(service, test)
    assert len(filtered._theirs) <= 16
    lively = Listener("tenant=default&kinds=finished")
    heard(make_service(), lively, call(), call())
    assert lively.kinds() == ["finished", "finished"]
