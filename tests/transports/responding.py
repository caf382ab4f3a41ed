"""A server put together for tests of ``/v1/responses``, and what its answers say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stepwell.core.config import Config, MemoryConfig, SchedulerConfig, ServerConfig, WireConfig
from stepwell.core.config_responses import ResponsesConfig
from stepwell.core.config_store import StoreConfig
from stepwell.core.registry import complete
from stepwell.sim.backend import EchoBackend
from stepwell.tests.transports.house import flat_cost
from stepwell.transports.echo import ByteTokenizer, last_message
from stepwell.transports.model import Model
from stepwell.transports.responses.create import CREATE, order_of
from stepwell.transports.responses.house import Responses
from stepwell.transports.responses.live import Live
from stepwell.transports.service import Service
from stepwell.transports.store.store import open_store

URL = "/v1/responses"
TENANT = "X-Stepwell-Tenant"


def crowded(policy: str, lengths: Any, **responses: Any) -> Service:
    """Room for one at a time."""
    config = Config(
        scheduler=SchedulerConfig(policy=policy, running_limit=1, token_budget=64),
        memory=MemoryConfig(pages=4000, page_size=4, host_pages=0),
        responses=ResponsesConfig(**responses),
        wire=WireConfig(),
    )
    backend = EchoBackend(cost=flat_cost(1_000_000), lengths=lengths)
    model = Model(name="echo", backend=backend, tokenizer=ByteTokenizer(), template=last_message)
    return Service(complete(config), model)


def create(text: Any = "hello", **fields: Any) -> dict[str, Any]:
    return {"model": "echo", "input": text, **fields}


def framed(text: str) -> list[Any]:
    """The events of a stream; that ``event:`` and the type agree is checked on the way."""
    assert "\r" not in text
    found = []
    for frame in text.split("\n\n")[:-1]:
        if frame == ": keep-alive":
            continue
        kind, data = frame.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert kind == f"event: {found[-1]['type']}"
    return found


def said(events: list[Any]) -> str:
    return "".join(each["delta"] for each in events if each["type"] == "response.output_text.delta")


def text_of(response: Any) -> str:
    return "".join(part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"])


def house(step_us: float = 20, lengths: Any = None, path: Path | None = None, **responses: Any) -> Service:
    """With tenants by header, and these settings of ``[responses]``; ``path``: of a store."""
    config = Config(
        memory=MemoryConfig(pages=4000, page_size=4, host_pages=0),
        server=ServerConfig(),
        wire=WireConfig(tenant_header=TENANT),
        responses=ResponsesConfig(**responses),
    )
    backend = EchoBackend(cost=flat_cost(int(step_us * 1000)), lengths=lengths)
    store = open_store(StoreConfig(path=str(path))) if path is not None else None
    model = Model(name="echo", backend=backend, tokenizer=ByteTokenizer(), template=last_message)
    return Service(config, model, store=store)


def responses_in(app: Any) -> Responses:
    found: Responses = app.state.responses
    return found


async def begun(app: Any, service: Service, body: dict[str, Any]) -> Live:
    """A response without a connection."""
    live = responses_in(app).live(order_of(CREATE.decode(json.dumps(body)), service, {}))
    await live.begin()
    return live
