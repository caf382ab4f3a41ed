"""Sockets of ``ws /v1/responses``: how many there may be, how long one may be silent, and what is told of waiting."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stepwell.core.config import Config, MemoryConfig, ServerConfig
from stepwell.core.registry import complete
from stepwell.sim.backend import EchoBackend
from stepwell.tests.transports.house import client
from stepwell.tests.transports.responding import TENANT, URL, crowded, house, said, text_of
from stepwell.tests.transports.test_websocket import closed_with, create, settled, until_end
from stepwell.transports.echo import ByteTokenizer, last_message
from stepwell.transports.model import Model
from stepwell.transports.service import Service

from starlette.testclient import WebSocketTestSession  # isort: skip


def until_kind(socket: WebSocketTestSession, kind: str) -> Any:
    """The first event of that kind."""
    while True:
        event = json.loads(socket.receive_text())
        if event["type"] == kind:
            return event


def test_sockets_are_bounded_in_all_and_by_tenant() -> None:
    service = house(max_sockets=3, tenant_sockets=2)
    with client(service) as http:
        with (
            http.websocket_connect(URL, headers={TENANT: "a"}) as one,
            http.websocket_connect(URL, headers={TENANT: "a"}),
        ):
            with http.websocket_connect(URL, headers={TENANT: "a"}) as third:
                event = json.loads(third.receive_text())
                assert (event["status"], event["error"]["code"]) == (429, "too_many_sockets")
                assert closed_with(third) == 1008
            with http.websocket_connect(URL, headers={TENANT: "b"}), http.websocket_connect(URL) as fourth:
                assert json.loads(fourth.receive_text())["error"]["headers"]["Retry-After"]
                assert closed_with(fourth) == 1013
            one.send_json(create())
            assert said(until_end(one)) == "hello"
        assert settled(service)
        with http.websocket_connect(URL, headers={TENANT: "a"}) as again:
            again.send_json(create())
            assert said(until_end(again)) == "hello"


def test_a_socket_that_is_silent_is_closed_and_one_that_waits_is_not() -> None:
    service = house(step_us=4000, lengths={1: 150}, idle_s=0.1)
    with client(service) as http, http.websocket_connect(URL) as socket:
        socket.send_json(create("ab", max_output_tokens=150))
        assert until_end(socket)[-1]["type"] == "response.completed"
        assert closed_with(socket) == 4408
    assert service.sockets_open == 0


def test_a_socket_is_closed_when_the_engine_stopped() -> None:
    class Broken(EchoBackend):
        def execute(self, *arguments: Any) -> Any:
            raise RuntimeError("on purpose")

    config = Config(memory=MemoryConfig(pages=400, page_size=4, host_pages=0), server=ServerConfig())
    model = Model(name="echo", backend=Broken(), tokenizer=ByteTokenizer(), template=last_message)
    service = Service(complete(config), model)
    with client(service) as http, http.websocket_connect(URL) as socket:
        socket.send_json(create())
        assert until_end(socket)[-1]["type"] == "response.failed"
        assert closed_with(socket) == 1012


def test_what_was_made_over_a_socket_is_continued_there_and_read_over_http() -> None:
    with client(house()) as http:
        with http.websocket_connect(URL) as socket:
            socket.send_json(create("one", stream_id="a"))
            first = until_end(socket)
            id = first[0]["response"]["id"]
            socket.send_json(create("two", stream_id="b", previous_response_id=id))
            second = until_end(socket)[-1]["response"]
            assert second["previous_response_id"] == id
            socket.send_json(create("three", previous_response_id="resp_0"))
            assert until_end(socket)[-1]["error"]["code"] == "previous_response_not_found"
        told = http.get(f"{URL}/{second['id']}/input_items?order=asc").json()["data"]
        assert [each["content"][0]["text"] for each in told] == ["one", "one", "two"]
        events = http.get(f"{URL}/{id}?stream=true").text.split("\n\n")[:-1]
        again = [json.loads(each.partition("\ndata: ")[2]) for each in events]
        assert [{**each, "stream_id": "a"} for each in again] == first


def test_closing_ends_stored_ones_too_and_they_say_so() -> None:
    service = house(step_us=1000, lengths={1: 100_000})
    with client(service) as http:
        with http.websocket_connect(URL) as socket:
            socket.send_json(create("ab", store=True))
            id = until_kind(socket, "response.created")["response"]["id"]
            until_kind(socket, "response.output_text.delta")
        assert settled(service)
        told = http.get(f"{URL}/{id}").json()
        assert told["status"] == "cancelled"
        assert text_of(told)


def test_a_response_that_waits_is_told_when_its_place_changes() -> None:
    service = crowded("fcfs", {1: 200, 2: 100, 3: 100, 4: 4}, queue_update_s=0.05)
    with client(service) as http, http.websocket_connect(URL) as socket:
        socket.send_json(create("a", stream_id="0"))
        until_kind(socket, "response.output_text.delta")
        for lane in "123":
            socket.send_json(create("b", stream_id=lane))
            until_kind(socket, "response.queued")
        events = [each for each in until_end(socket, ends=4) if each["stream_id"] == "3"]
        places = [each["queue_position"] for each in events if each["type"] == "response.queued"]
        assert places == [2, 1]
        assert all(each["estimated_wait_ms"] >= 0 for each in events if each["type"] == "response.queued")
        assert [each["sequence_number"] for each in events] == list(range(2, 2 + len(events)))


@pytest.mark.parametrize("asked", [True, False])
def test_who_asks_is_told_of_pauses(asked: bool) -> None:
    """A batch job gives way to a chat, and goes on."""
    service = crowded("chat-batch", {1: 200, 2: 10})
    options = {"stream_options": {"include_scheduling": asked}}
    with client(service) as http, http.websocket_connect(URL) as socket:
        socket.send_json(create("ab", stream_id="batch", service_tier="flex", **options))
        until_kind(socket, "response.output_text.delta")
        socket.send_json(create("cd", stream_id="chat", max_output_tokens=3))
        events = [each for each in until_end(socket, ends=2) if each["stream_id"] == "batch"]
        kinds = [each["type"] for each in events if each["type"] in ("response.paused", "response.resumed")]
        assert kinds == ["response.paused", "response.resumed"] * asked
        for each in events:
            if each["type"] == "response.paused":
                assert each["reason"]
                assert each["preemptions"] == 1
        assert text_of(events[-1]["response"]) == "ab" * 100
