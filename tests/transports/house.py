"""A server put together for tests, without sockets: the echo backend behind the real application.

Importing this first skips a test module where the extra ``serve`` is not installed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest

pytest.importorskip("starlette", reason="needs the extra `serve`")
pytest.importorskip("uvicorn", reason="needs the extra `serve`")
pytest.importorskip("httpx2", reason="Starlette's test client needs httpx2")

from starlette.testclient import TestClient
from starlette.types import ASGIApp

from stepwell.core.config import (
    DEFAULT_CLASSES,
    ClassConfig,
    Config,
    MemoryConfig,
    ModelConfig,
    SchedulerConfig,
    ServerConfig,
    WireConfig,
    validate,
)
from stepwell.core.config_admin import AdminConfig, TelemetryConfig
from stepwell.core.config_gateway import GatewayConfig, KeyConfig, TenantConfig
from stepwell.core.config_store import StoreConfig
from stepwell.core.engine import Observer
from stepwell.core.registry import complete
from stepwell.sim.backend import EchoBackend, FaultScript, no_faults
from stepwell.sim.cost.linear import Linear
from stepwell.transports.echo import ByteTokenizer, last_message
from stepwell.transports.http.app import create_app
from stepwell.transports.model import Model
from stepwell.transports.service import Service
from stepwell.transports.store.store import open_store

PATIENCE_S = 30
"""For things that must happen at all; nothing is timed."""


def flat_cost(step_ns: int) -> Linear:
    """Every step takes so long, whatever is in it."""
    return Linear(
        Linear.Options(base_ns=step_ns, prefill_token_ns=0, decode_request_ns=0, kv_token_ps=0, swap_page_ns=0)
    )


def make_service(
    *,
    step_us: float = 20,
    server: Mapping[str, Any] | None = None,
    keys: Sequence[Mapping[str, Any]] = (),
    gateway: Mapping[str, Any] | None = None,
    wire: Mapping[str, Any] | None = None,
    admin: Mapping[str, Any] | None = None,
    telemetry: Mapping[str, Any] | None = None,
    classes: Sequence[Mapping[str, Any]] | None = None,
    tenants: Sequence[Mapping[str, Any]] = (),
    scheduler: Mapping[str, Any] | None = None,
    memory: Mapping[str, Any] | None = None,
    lengths: Mapping[int, int] | None = None,
    faults: FaultScript = no_faults,
    backend: Any = None,
    observers: Sequence[Observer] = (),
    parsers: Mapping[str, Any] | None = None,
    store: Mapping[str, Any] | None = None,
    **model: Any,
) -> Service:
    """``step_us``: what a step takes.  ``lengths``: of answers, by request; otherwise those of the prompts.
    ``parsers``: ``tool_parser`` and ``reasoning_parser`` of the configuration."""
    config = Config(
        scheduler=SchedulerConfig(**(scheduler or {})),
        memory=MemoryConfig(**{"pages": 400, "page_size": 4, "host_pages": 0, **(memory or {})}),
        server=ServerConfig(**(server or {})),
        keys=tuple(KeyConfig(**each) for each in keys),
        gateway=GatewayConfig(**(gateway or {})),
        wire=WireConfig(**(wire or {})),
        admin=AdminConfig(**(admin or {})),
        telemetry=TelemetryConfig(**(telemetry or {})),
        classes=DEFAULT_CLASSES if classes is None else tuple(ClassConfig(**each) for each in classes),
        tenants=tuple(TenantConfig(**each) for each in tenants),
        model=ModelConfig(**(parsers or {})),
        store=StoreConfig(**(store or {})),
    )
    cost = flat_cost(int(step_us * 1000))
    made = Model(
        **{
            "name": "echo",
            "backend": backend or EchoBackend(cost=cost, lengths=lengths, faults=faults),
            "tokenizer": ByteTokenizer(),
            "template": last_message,
            **model,
        }
    )
    return Service(complete(validate(config)), made, observers=observers, store=open_store(config.store))


def idle(service: Service) -> bool:
    """No request, no page in use, nothing in the gauges, nobody waited for."""
    state, metrics = service.scheduler.state, service.metrics
    usage = state.allocator.usage()
    return (
        not state.requests
        and not state.inflight
        and usage.free == usage.total
        and (metrics.running, metrics.waiting, metrics.pages) == (0, 0, 0)
        and not service._open
        and not service._watched
        and not service.unstarted.size
        and not service.admission.limits.open
    )


def client(service: Service) -> TestClient:
    """Use it as a context: the engine runs inside."""
    return TestClient(create_app(service), raise_server_exceptions=False)


def chat(content: Any = "hello", **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], **fields}


def events(text: str) -> list[Any]:
    """The data of every event; the frames are checked on the way."""
    assert "\r" not in text
    assert text.endswith("\n\n")
    found: list[Any] = []
    for frame in text[:-2].split("\n\n"):
        lines = frame.split("\n")
        if lines == [": keep-alive"]:
            continue
        assert [line for line in lines if not line.startswith(("data: ", "event: "))] == []
        (data,) = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
        found.append(data if data == "[DONE]" else json.loads(data))
    assert found[-1] == "[DONE]"
    return found[:-1]


def error_of(response: Any) -> tuple[int, str, str | None]:
    """Status, code and field; that it has OpenAI's shape is checked on the way."""
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert len(response.content) < 1500
    return response.status_code, error["code"], error["param"]


# ------------------------------------------------------------------------------------------------ by hand


@dataclass
class Call:
    """One call of the application, by hand, so that its client can leave at any moment."""

    path: str
    body: Mapping[str, Any]
    status: int = 0
    parts: list[bytes] = field(default_factory=list)
    whole: bool = False
    deaf: bool = False
    """Takes the head and then nothing more."""
    method: str = "POST"
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.left = anyio.Event()
        self._asked = False

    @property
    def text(self) -> str:
        return b"".join(self.parts).decode()

    async def receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": json.dumps(self.body).encode(), "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        if self.deaf:
            await anyio.sleep_forever()
        self.parts.append(message.get("body", b""))
        self.whole = self.whole or not message.get("more_body", False)

    async def run(self, app: ASGIApp) -> None:
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": self.method,
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": self.query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in self.headers.items()],
            "server": ("test", 80),
            "client": ("test", 1),
            "scheme": "http",
            "root_path": "",
        }
        await app(scope, self.receive, self.send)


@asynccontextmanager
async def running(service: Service, *, breaks: bool = False) -> AsyncIterator[ASGIApp]:
    """The application with its engine; nothing is left of it afterwards (but pages, if the engine ``breaks``)."""
    before = len(asyncio.all_tasks())
    async with anyio.create_task_group() as tasks:
        started = anyio.Event()
        tasks.start_soon(service.run, started.set)
        await started.wait()
        try:
            yield create_app(service)
        finally:
            service.stop()
    assert len(asyncio.all_tasks()) == before
    assert breaks or idle(service)


async def until(condition: Callable[[], bool]) -> None:
    """It must come true."""
    with anyio.fail_after(PATIENCE_S):
        while not condition():
            await anyio.sleep(0.002)


def visit(service: Service, test: Callable[[ASGIApp], Awaitable[None]], *, breaks: bool = False) -> None:
    """Run ``test`` in the running house."""

    async def main() -> None:
        async with running(service, breaks=breaks) as app:
            await test(app)

    anyio.run(main)
