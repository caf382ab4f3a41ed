"""A crowd at a server (HC-3): streams over SSE and WebSocket, huge prompts beside them, and a probe of its health.

Who streams shares one event loop; the huge prompts and the probe have threads of their own, so that the crowd does not
measure itself.  Used by ``test_hc3.py``, which looks at what was said, and ``benchmarks/hc3.py``, which looks at when.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from stepwell.tests.e2e.serving import PATIENCE_S

import httpx2  # isort: skip
from websockets.asyncio.client import connect  # isort: skip

CHAT = "/v1/chat/completions"


@dataclass
class Heard:
    """One stream: all of its text, and when each piece came (seconds of the monotonic clock)."""

    text: str = ""
    at_s: list[float] = field(default_factory=list)
    ended: str = ""

    def piece(self, text: str) -> None:
        self.text += text
        self.at_s.append(time.monotonic())

    @property
    def gaps_s(self) -> list[float]:
        return [later - sooner for sooner, later in zip(self.at_s, self.at_s[1:], strict=False)]


def chat(content: str, **more: Any) -> bytes:
    """The body of a chat request."""
    return json.dumps({"messages": [{"role": "user", "content": content}], **more}).encode()


async def over_sse(client: httpx2.AsyncClient, content: str) -> Heard:
    heard = Heard()
    async with client.stream("POST", CHAT, content=chat(content, stream=True)) as answer:
        async for line in answer.aiter_lines():
            if line == "data: [DONE]":
                break
            if line.startswith("data: "):
                (choice,) = json.loads(line.removeprefix("data: "))["choices"]
                if choice["delta"].get("content"):
                    heard.piece(choice["delta"]["content"])
                heard.ended = choice["finish_reason"] or ""
    return heard


async def over_websocket(port: int, content: str) -> Heard:
    heard = Heard()
    async with connect(f"ws://127.0.0.1:{port}/v1/responses", compression=None) as socket:
        await socket.send(json.dumps({"type": "response.create", "input": content}))
        async for message in socket:
            event = json.loads(message)
            if event["type"] == "response.output_text.delta":
                heard.piece(event["delta"])
            elif event["type"] in ("response.completed", "response.incomplete", "response.failed", "error"):
                heard.ended = event["type"]
                break
    return heard


async def streams(port: int, contents: Sequence[str], websockets: int) -> list[Heard]:
    """All at once, the last ``websockets`` of them over sockets."""
    limits = httpx2.Limits(max_connections=None)
    base = f"http://127.0.0.1:{port}"
    sse = len(contents) - websockets
    async with httpx2.AsyncClient(base_url=base, timeout=PATIENCE_S, limits=limits, trust_env=False) as client:
        return await asyncio.gather(
            *(over_sse(client, content) for content in contents[:sse]),
            *(over_websocket(port, content) for content in contents[sse:]),
        )


def post(port: int, body: bytes) -> tuple[int, Any]:
    """Status and answer, by a client that sends all of its body before it looks at anything."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("POST", CHAT, body)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


@dataclass
class Probe:
    """``GET /health``, again and again over one connection: every status, and how long each took (seconds)."""

    port: int
    period_s: float
    statuses: list[int] = field(default_factory=list)
    took_s: list[float] = field(default_factory=list)

    @contextmanager
    def probing(self) -> Any:
        """Inside; a connection that fails counts as status 0."""
        over = threading.Event()
        thread = threading.Thread(target=self._probe, args=(over,))
        thread.start()
        try:
            yield self
        finally:
            over.set()
            thread.join()

    def _probe(self, over: threading.Event) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        while not over.wait(self.period_s):
            began_s = time.monotonic()
            try:
                connection.request("GET", "/health")
                answer = connection.getresponse()
                answer.read()
                self.statuses.append(answer.status)
            except (OSError, http.client.HTTPException):
                self.statuses.append(0)
                connection.close()
            self.took_s.append(time.monotonic() - began_s)
        connection.close()
