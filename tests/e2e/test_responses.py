"""OpenAI's SDK against ``/v1/responses`` of a real server: all it offers for text, and what it makes of our own."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepwell.tests.e2e.serving import PATIENCE_S, Server, serving

import openai  # isort: skip
from openai import OpenAI  # isort: skip
from openai.types.responses import Response, ResponseTextDeltaEvent  # isort: skip

QUESTION = "ein Fluß, der fließt"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--set", "responses.hold_s=20", step_us=1000) as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with client_of(server) as made:
        yield made


def client_of(server: Server) -> OpenAI:
    return OpenAI(base_url=server.url, api_key="none", timeout=PATIENCE_S, max_retries=0)


def said(events: list[Any]) -> str:
    return "".join(each.delta for each in events if isinstance(each, ResponseTextDeltaEvent))


def polled(client: OpenAI, id: str) -> Response:
    deadline = time.monotonic() + PATIENCE_S
    while (told := client.responses.retrieve(id)).status in ("queued", "in_progress"):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return told


def test_create_stream_retrieve_and_delete(client: OpenAI) -> None:
    whole = client.responses.create(model="echo", input=QUESTION, instructions="brief", metadata={"a": "b"})
    assert (whole.status, whole.output_text, whole.metadata) == ("completed", QUESTION, {"a": "b"})
    assert whole.usage is not None
    assert whole.usage.output_tokens == len(QUESTION.encode())
    with client.responses.stream(model="echo", input=QUESTION) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert final.output_text == QUESTION
    again = client.responses.retrieve(whole.id)
    assert again.output_text == QUESTION
    second = client.responses.create(model="echo", input="more", previous_response_id=whole.id)
    items = list(client.responses.input_items.list(second.id, order="asc", limit=1))
    assert [each.type for each in items] == ["message"] * 3
    client.responses.delete(whole.id)
    with pytest.raises(openai.NotFoundError) as missing:
        client.responses.retrieve(whole.id)
    assert missing.value.code == "response_not_found"


def test_a_cut_stream_is_taken_up_again_at_every_number(server: Server, client: OpenAI) -> None:
    """WS-1: and what nobody takes up again is cancelled."""
    uncut = list(client.responses.create(model="echo", input="abcdefgh", stream=True, store=True))
    assert said(uncut) == "abcdefgh"
    for cut in range(1, len(uncut)):
        stream = client.responses.create(model="echo", input="abcdefgh", stream=True, store=True)
        events = []
        for event in stream:
            events.append(event)
            if len(events) == cut:
                break
        stream.close()
        id, last = events[0].response.id, events[-1].sequence_number  # type: ignore[union-attr]
        events += client.responses.retrieve(id, stream=True, starting_after=last)
        assert [each.sequence_number for each in events] == list(range(len(events)))
        assert said(events) == "abcdefgh"
        assert events[-1].type == "response.completed"
    left = client.responses.create(model="echo", input="x" * 3000, stream=True)
    id = next(iter(left)).response.id  # type: ignore[union-attr]
    left.close()
    assert polled(client, id).status == "cancelled"
    server.until(lambda: server.idle)


def test_in_the_background(server: Server, client: OpenAI) -> None:
    started = client.responses.create(model="echo", input=QUESTION, background=True)
    assert started.status in ("queued", "in_progress")
    assert polled(client, started.id).output_text == QUESTION
    long = client.responses.create(model="echo", input="x" * 4000, background=True)
    ended = client.responses.cancel(long.id)
    assert ended.status == "cancelled"
    events = list(client.responses.retrieve(long.id, stream=True))
    assert events[-1].type == "response.incomplete"
    server.until(lambda: server.idle)


@pytest.mark.filterwarnings("ignore:connect.. must be used:DeprecationWarning")  # the SDK's own
def test_over_a_websocket(server: Server, client: OpenAI) -> None:
    """Two lanes, a conversation, a cancel and a mistake; what the SDK does not know does not disturb it."""
    ends = ("response.completed", "response.incomplete", "error")
    with client.responses.connect() as socket:
        for lane, text in (("a", "first"), ("b", "second")):
            socket.response.create(model="echo", input=text, stream_id=lane)
        events: list[Any] = []
        while sum(each.type in ends for each in events) < 2:
            events.append(socket.recv())
        for lane, text in (("a", "first"), ("b", "second")):
            assert said([each for each in events if each.stream_id == lane]) == text
        first = events[-1].response.id
        options: Any = {"include_scheduling": True}
        socket.response.create(model="echo", input="third", previous_response_id=first, stream_options=options)
        while (event := socket.recv()).type not in ends:
            pass
        assert event.response.output_text == "third"  # type: ignore[union-attr]
        socket.response.create(model="echo", input="y", temperature=9)
        mistake: Any = socket.recv()
        assert (mistake.type, mistake.status, mistake.error.param) == ("error", 400, "temperature")
        socket.response.create(model="echo", input="x" * 4000)
        id = socket.recv().response.id  # type: ignore[union-attr]
        cancel: Any = {"type": "response.cancel", "response_id": id}
        socket.send(cancel)
        while (event := socket.recv()).type not in ends:
            pass
        assert event.response.status == "cancelled"  # type: ignore[union-attr]
    assert client.responses.retrieve(first).status == "completed"
    server.until(lambda: server.idle)


def test_pauses_do_not_disturb_the_sdk(server: Server) -> None:
    """Events that it does not know, over HTTP and through its own accumulating stream."""
    one = ("--policy", "chat-batch", "--set", "scheduler.running_limit=1", "--set", "scheduler.token_budget=64")
    with serving(*one, step_us=2000) as crowded, client_of(crowded) as client:
        options: Any = {"include_scheduling": True}
        with client.responses.stream(
            model="echo", input="x" * 300, service_tier="flex", stream_options=options
        ) as stream:
            kinds, asked = [], False
            for event in stream:
                kinds.append(str(event.type))
                if not asked and "delta" in kinds[-1]:
                    asked = True
                    assert client.responses.create(model="echo", input="chat").output_text == "chat"
            assert stream.get_final_response().output_text == "x" * 300
        assert kinds.count("response.paused") == kinds.count("response.resumed") > 0


def test_what_a_killed_server_leaves_behind(tmp_path: Path) -> None:
    store = ("--set", f"store.path={tmp_path / 'store.db'}")
    with serving(*store, step_us=2000) as server, client_of(server) as client:
        whole = client.responses.create(model="echo", input="kept")
        cut = client.responses.create(model="echo", input="x" * 4000, background=True)
        assert polled(client, whole.id).output_text == "kept"
        client.responses.create(model="echo", input="later")  # whatever was handed in before is written by then
        client.responses.create(model="echo", input="background", background=True)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait(PATIENCE_S)
    with serving(*store) as server, client_of(server) as client:
        assert client.responses.retrieve(whole.id).output_text == "kept"
        told = client.responses.retrieve(cut.id)
        assert told.status == "failed"
        assert told.error is not None
        assert "ended before" in told.error.message
        again = client.responses.create(model="echo", input="on", previous_response_id=whole.id)
        assert again.output_text == "on"
