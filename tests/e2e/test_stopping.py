"""A server that stops before its answers end: every client is told, in the shape that it understands."""

from __future__ import annotations

import asyncio
import http.client
import json
from pathlib import Path
from typing import Any

import pytest

from stepwell.tests.e2e.serving import PATIENCE_S, Server, serving
from stepwell.tests.transports.house import events

import openai  # isort: skip
from openai import OpenAI  # isort: skip
from websockets.asyncio.client import ClientConnection, connect  # isort: skip
from websockets.exceptions import ConnectionClosed  # isort: skip

LONG = {"messages": [{"role": "user", "content": "x" * 10_000}]}


def ask(server: Server, **fields: Any) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
    connection.request("POST", "/v1/chat/completions", json.dumps({**LONG, **fields}), {"Connection": "close"})
    return connection.getresponse()


async def open_lanes(server: Server) -> ClientConnection:
    """One that answers and one that waits behind it, and a second lane."""
    socket = await connect(server.url.replace("http", "ws") + "/responses", compression=None)
    for lane in ("one", "one", "two"):
        message = {"type": "response.create", "input": "x" * 10_000, "stream_id": lane}
        await socket.send(json.dumps(message))
    begun: set[str] = set()
    while len(begun) < 2:
        event = json.loads(await socket.recv())
        if event["type"] == "response.output_text.delta":
            begun.add(event["stream_id"])
    return socket


async def last_words(socket: ClientConnection) -> tuple[list[tuple[str, str, str]], int | None]:
    """The ends of all lanes, and how the socket was closed."""
    ends = []
    try:
        while True:
            event = json.loads(await socket.recv())
            if event["type"] == "response.failed":
                ends.append((event["stream_id"], event["type"], event["response"]["error"]["code"]))
            elif event["type"] == "error":
                ends.append((event["stream_id"], event["type"], event["error"]["code"]))
    except ConnectionClosed as closed:
        return sorted(ends), closed.rcvd.code if closed.rcvd else None


async def everybody(server: Server, signals: int) -> None:
    """Streams, answers in one piece, and a socket; all are there when it is told to stop."""
    stream = await asyncio.to_thread(ask, server, stream=True)
    whole = [asyncio.create_task(asyncio.to_thread(ask, server)) for _ in range(2)]
    socket = await open_lanes(server)
    await asyncio.to_thread(server.until, lambda: server.metric("stepwell:streams_open") == 5)
    stopped = asyncio.create_task(asyncio.to_thread(server.stop, signals))

    said = (await asyncio.to_thread(stream.read)).decode()
    assert "event: error\n" in said
    assert events(said)[-1]["error"]["code"] == "shutting_down"
    for answer in await asyncio.gather(*whole):
        assert (answer.status, answer.getheader("connection")) == (503, "close")
        assert json.loads(answer.read())["error"]["code"] == "shutting_down"
    ends, code = await last_words(socket)
    assert [end[:2] for end in ends] == [("one", "error"), ("one", "response.failed"), ("two", "response.failed")]
    assert {end[2] for end in ends} == {"shutting_down"}
    assert code == 1001
    assert await stopped == 0


@pytest.mark.parametrize(("signals", "drain_s"), [(1, 0.1), (2, 60)], ids=["deadline", "second signal"])
def test_what_is_cut_off_is_told(tmp_path: Path, signals: int, drain_s: float) -> None:
    errors = tmp_path / "stderr"
    with serving("--set", f"server.drain_s={drain_s}", step_us=20_000, errors=errors) as server:
        asyncio.run(everybody(server, signals))
    assert "Traceback" not in errors.read_text()
    assert errors.read_text().count("\n") == 1


def test_a_body_that_still_comes_is_not_waited_for(tmp_path: Path) -> None:
    errors = tmp_path / "stderr"
    with serving("--set", "server.drain_s=0", errors=errors) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
        connection.putrequest("POST", "/v1/chat/completions")
        connection.putheader("Content-Length", "1000")
        connection.endheaders(b"{")
        server.until(lambda: server.idle)
        assert server.stop() == 0
        assert connection.getresponse().status == 503
        connection.close()
    assert errors.read_text().count("\n") == 1


def test_the_sdk_sees_an_error() -> None:
    with serving("--set", "server.drain_s=0", step_us=20_000) as server:
        with OpenAI(base_url=server.url, api_key="none", timeout=PATIENCE_S, max_retries=0) as client:
            stream: Any = client.chat.completions.create(model="echo", stream=True, **LONG)  # type: ignore[call-overload]
            next(iter(stream))
            server.process.terminate()
            with pytest.raises(openai.APIError, match="shutting down"):
                list(stream)
        assert server.process.wait(PATIENCE_S) == 0
