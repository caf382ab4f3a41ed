"""``ws /v1/responses``: events in order, lanes beside each other, cancels, mistakes, and a close that ends it all."""

from __future__ import annotations

import json
import sys
from typing import Any

import anyio
import pytest

from stepwell.tests.transports.house import PATIENCE_S, client, error_of, idle, make_service, running, visit
from stepwell.transports.responses.create import CREATE, order_of
from stepwell.transports.service import Service

from starlette.testclient import WebSocketDenialResponse, WebSocketTestSession  # isort: skip
from starlette.websockets import WebSocketDisconnect  # isort: skip

URL = "/v1/responses"
ENDS = {"response.completed", "response.incomplete", "response.failed", "error"}


def create(text: str = "hello", **fields: Any) -> dict[str, Any]:
    return {"type": "response.create", "model": "echo", "input": text, **fields}


def until_end(socket: WebSocketTestSession, ends: int = 1) -> list[Any]:
    """Every event up to so many ends."""
    found: list[Any] = []
    while ends:
        found.append(json.loads(socket.receive_text()))
        ends -= found[-1]["type"] in ENDS
    return found


def said(events: list[Any]) -> str:
    return "".join(each["delta"] for each in events if each["type"] == "response.output_text.delta")


def settled(service: Service) -> bool:
    """The application runs in another thread of the test client."""
    import time  # lazy: only here

    deadline = time.monotonic() + PATIENCE_S
    while not idle(service) and time.monotonic() < deadline:
        time.sleep(0.005)
    return idle(service)


def test_one_response_from_created_to_completed() -> None:
    service = make_service()
    with client(service) as http, http.websocket_connect(URL) as socket:
        socket.send_json(create("grüße", metadata={"a": "b"}))
        events = until_end(socket)
        kinds = [each["type"] for each in events if each["type"] != "response.output_text.delta"]
        assert events[0]["response"]["metadata"] == {"a": "b", "stepwell_request": "1"}
        assert [kind for kind in kinds if kind != "response.queued"] == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
        assert [each["sequence_number"] for each in events] == list(range(len(events)))
        assert said(events) == "grüße"
        last = events[-1]["response"]
        assert last["status"] == "completed"
        assert last["output"][0]["content"][0]["text"] == "grüße"
        assert last["metadata"] == {"a": "b"}
        assert last["usage"]["input_tokens"] == 7
        assert last["usage"]["total_tokens"] == 14
        assert all("stream_id" not in each for each in events)
        socket.send_json(create("x" * 9, max_output_tokens=4))
        last = until_end(socket)[-1]
        assert last["type"] == "response.incomplete"
        assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
        items = [
            {"role": "developer", "content": "no"},
            {"role": "user", "content": [{"type": "input_text", "text": "y"}]},
        ]
        socket.send_json({**create(), "input": items, "instructions": "be brief"})
        assert said(until_end(socket)) == "y"


def test_ws_1_lanes_run_beside_each_other_and_in_order_within() -> None:
    service = make_service(step_us=500, lengths={1: 60, 2: 20, 3: 20})
    with client(service) as http, http.websocket_connect(URL) as socket:
        socket.send_json(create("aa", stream_id="one"))
        events = [json.loads(socket.receive_text())]  # it is the first to be submitted, and so the long one
        for text, lane in (("bb", "one"), ("cc", "two")):
            socket.send_json(create(text, stream_id=lane))
        events += until_end(socket, ends=3)
        lanes = {lane: [each for each in events if each["stream_id"] == lane] for lane in ("one", "two")}
        ends = [(each["stream_id"], each["type"]) for each in events if each["type"] in ENDS]
        assert ends == [("two", "response.completed"), ("one", "response.completed"), ("one", "response.completed")]
        assert said(lanes["one"]) == "a" * 60 + "b" * 20
        assert said(lanes["two"]) == "c" * 20
        first_end = [each["type"] for each in lanes["one"]].index("response.completed")
        assert lanes["one"][first_end + 1]["type"] == "response.created"
    assert settled(service)


def test_what_comes_while_an_event_is_sent_is_not_lost() -> None:
    """The answer goes on, and ends, between any two events."""
    service = make_service(lengths={1: 50})

    async def main() -> list[Any]:
        async with running(service) as app:
            order = order_of(CREATE.decode(json.dumps(create("abcde"))), service, {})
            live = app.state.responses.live(order)  # type: ignore[attr-defined]
            await live.begin()
            reader, found = live.read(), []
            while not reader.over:
                for _, data in reader.events():
                    found.append(json.loads(data))
                    await live.finished()
            reader.leave()
            return found

    found = anyio.run(main)
    assert said(found) == "abcde" * 10
    assert found[-1]["response"]["output"][0]["content"][0]["text"] == "abcde" * 10


def test_a_response_that_waits_says_so() -> None:
    service = make_service(step_us=500, lengths={1: 60, 2: 2}, scheduler={"running_limit": 1, "token_budget": 8})
    with client(service) as http, http.websocket_connect(URL) as socket:
        socket.send_json(create("aa", stream_id="one"))
        while json.loads(socket.receive_text())["type"] != "response.output_text.delta":
            pass
        socket.send_json(create("bb", stream_id="two"))
        events = [each for each in until_end(socket, ends=2) if each["stream_id"] == "two"]
        assert [each["type"] for each in events][:3] == ["response.created", "response.queued", "response.in_progress"]
        assert events[0]["response"]["status"] == "queued"
        assert events[1]["queue_position"] == 1
        assert events[-1]["type"] == "response.completed"


@pytest.mark.parametrize("by", ["response_id", "stream_id"])
def test_ws_1_cancel_ends_a_response_within_a_step(by: str) -> None:
    service = make_service(step_us=500, lengths={1: 10_000, 2: 5}, memory={"pages": 4000})
    with client(service) as http, http.websocket_connect(URL) as socket:
        socket.send_json(create("ab", stream_id="one"))
        first = json.loads(socket.receive_text())
        while json.loads(socket.receive_text())["type"] != "response.output_text.delta":
            pass
        named = first["response"]["id"] if by == "response_id" else "one"
        socket.send_json({"type": "response.cancel", by: named})
        last = until_end(socket)[-1]
        assert (last["type"], last["response"]["status"]) == ("response.incomplete", "cancelled")
        assert last["response"]["usage"]["output_tokens"] < 10_000
        socket.send_json(create("again"))
        assert said(until_end(socket)) == "again"
        assert service.metrics.ends["abort"] == 1


def test_a_response_cancelled_before_its_turn_ends_too() -> None:
    service = make_service(step_us=500, lengths={1: 10_000}, memory={"pages": 4000})
    with client(service) as http, http.websocket_connect(URL) as socket:
        socket.send_json(create("ab", stream_id="one"))
        socket.send_json(create("cd", stream_id="one"))
        while json.loads(socket.receive_text())["type"] != "response.output_text.delta":
            pass
        socket.send_json({"type": "response.cancel", "stream_id": "one"})
        ends = [each for each in until_end(socket, ends=2) if each["type"] in ENDS]
        assert [each["response"]["status"] for each in ends] == ["cancelled", "cancelled"]
    assert settled(service)


def test_ws_1_closing_ends_every_lane() -> None:
    service = make_service(step_us=500, lengths=dict.fromkeys(range(1, 9), 10_000), memory={"pages": 4000})
    with client(service) as http:
        with http.websocket_connect(URL) as socket:
            for lane in range(4):
                socket.send_json(create("ab", stream_id=f"lane {lane}"))
                socket.send_json(create("cd", stream_id=f"lane {lane}"))
            while json.loads(socket.receive_text())["type"] != "response.output_text.delta":
                pass
        assert settled(service)
        assert service.sockets_open == 0
        assert service.metrics.ends["abort"] >= 1
        assert service.metrics.ends["stop"] == 0


MISTAKES: list[tuple[Any, int, str, str | None]] = [
    ("{", 400, "invalid_json", None),
    ({"type": "session.update"}, 400, "invalid_value", "type"),
    ({}, 400, "invalid_value", "type"),
    (create(""), 400, "invalid_value", "input"),
    (create(temperature=9), 400, "invalid_value", "temperature"),
    (create(max_output_tokens=0), 400, "invalid_value", "max_output_tokens"),
    (create(model="gpt"), 404, "model_not_found", "model"),
    (create(previous_response_id="resp_1"), 400, "previous_response_not_found", "previous_response_id"),
    (create("x" * 5000), 400, "context_length_exceeded", "input"),
    ({"type": "response.cancel", "response_id": "resp_1"}, 400, "invalid_value", "response_id"),
    ({**create(), "input": [{"type": "item_reference"}]}, 400, "invalid_value", "input[0].type"),
    ({**create(), "input": [{"type": "function_call_output"}]}, 400, "invalid_value", "input[0].call_id"),
    (create(background=True), 400, "invalid_value", "background"),
    ({**create(), "input": [{"role": "user"}]}, 400, "invalid_value", "input[0].content"),
    ({**create(instructions="be brief"), "input": [{"role": "user"}]}, 400, "invalid_value", "input[0].content"),
    ({**create(), "input": [{"content": [{"type": "x"}]}]}, 400, "invalid_value", "input[0].content[0]"),
]


def test_ws_1_a_mistake_is_told_and_the_socket_stays_open() -> None:
    service = make_service()
    with client(service) as http, http.websocket_connect(URL) as socket:
        for message, status, code, field in MISTAKES:
            socket.send_text(message if isinstance(message, str) else json.dumps({**message, "stream_id": "lane"}))
            event = json.loads(socket.receive_text())
            assert (event["type"], event["status"]) == ("error", status), event
            assert (event["error"]["code"], event["error"]["param"]) == (code, field)
            assert set(event["error"]) == {"type", "code", "message", "param", "headers"}
            assert event.get("stream_id") == (None if message == "{" else "lane")
        socket.send_json(create())
        assert said(until_end(socket)) == "hello"
    assert settled(service)


def test_lanes_and_their_queues_are_bounded() -> None:
    limits = {"max_lanes": 2, "lane_queue": 2}
    service = make_service(step_us=2000, lengths=dict.fromkeys(range(1, 9), 10_000), server=limits)
    with client(service) as http, http.websocket_connect(URL) as socket:
        for lane in ("one", "one", "one", "two", "three"):
            socket.send_json(create("ab", stream_id=lane))
        refused: list[tuple[str, str]] = []
        while len(refused) < 2:
            event = json.loads(socket.receive_text())
            if event["type"] == "error":
                refused.append((event["stream_id"], event["error"]["code"]))
        assert refused == [("one", "lane_full"), ("three", "too_many_lanes")]
    assert settled(service)


def test_bytes_of_responses_that_wait_are_bounded() -> None:
    service = make_service(
        step_us=2000,
        lengths={1: 10_000},
        memory={"pages": 4000},
        server={"socket_mib": 0.002, "sockets_mib": 0.003},
    )
    with client(service) as http, http.websocket_connect(URL) as socket, http.websocket_connect(URL) as other:
        socket.send_json(create("ab"))
        while json.loads(socket.receive_text())["type"] != "response.output_text.delta":
            pass
        assert service.unstarted.size == 0
        for _ in range(3):
            socket.send_json(create("c" * 900))
        event = json.loads(socket.receive_text())
        while event["type"] != "error":
            event = json.loads(socket.receive_text())
        assert (event["status"], event["error"]["code"]) == (429, "too_many_bytes")
        other.send_json(create("d" * 3000))
        assert until_end(other)[-1]["error"]["code"] == "too_many_bytes"
    assert settled(service)


def test_what_waits_in_a_lane_may_end_when_the_server_drains() -> None:
    service = make_service(step_us=500, lengths={1: 1000, 2: 2, 3: 2}, memory={"pages": 1000})
    with client(service) as http, http.websocket_connect(URL) as socket:
        for text in ("ab", "cd", "x" * 5000, "ef", ""):
            socket.send_json(create(text))
        while "error" not in json.loads(socket.receive_text()):  # of the empty one: all before it are in the lane
            pass
        assert http.portal is not None
        http.portal.call(service.drain)
        socket.send_json(create("gh"))
        events = until_end(socket, ends=5)
        ends = [each.get("error", {}).get("code") or each["type"] for each in events if each["type"] in ENDS]
        done = "response.completed"
        assert sorted(ends) == ["context_length_exceeded", "draining", done, done, done]
        http.portal.call(service.drained)


def test_a_message_is_not_kept_once_it_is_understood() -> None:
    service = make_service()
    body = json.dumps(create("x" * 99, tool_choice="auto", tools=[], top_logprobs=0)).encode()
    held = sys.getrefcount(body)
    asked = CREATE.decode(body)
    assert sys.getrefcount(body) > held
    kept = order_of(asked, service, {})
    del asked
    assert sys.getrefcount(body) == held
    assert kept.items[0].content == "x" * 99


def closed_with(socket: WebSocketTestSession) -> int:
    try:
        while True:
            socket.receive_text()
    except WebSocketDisconnect as closed:
        return closed.code


def test_close_codes() -> None:
    service = make_service(server={"body_mib": 0.001})
    with client(service) as http:
        with http.websocket_connect(URL) as socket:
            socket.send_bytes(b"x")
            assert closed_with(socket) == 1003
        with http.websocket_connect(URL) as socket:
            socket.send_text("x" * 2000)
            assert closed_with(socket) == 1009
        with http.websocket_connect(URL) as socket:
            service.drain()
            socket.send_json(create())
            assert until_end(socket)[-1]["error"]["code"] == "draining"
            assert http.portal is not None
            http.portal.call(service.stopping.set)
            assert closed_with(socket) == 1001
    with client(make_service(server={"socket_s": 0.05})) as http, http.websocket_connect(URL) as socket:
        assert until_end(socket)[-1]["error"]["code"] == "websocket_connection_limit_reached"
        assert closed_with(socket) == 1001


def test_who_takes_nothing_is_dropped_at_the_end_of_its_life_too() -> None:
    """The last words have to wait for a send that never ends."""
    service = make_service(lengths={1: 100}, server={"socket_s": 0.1, "send_timeout_s": 0.3})
    coming = [{"type": "websocket.connect"}, {"type": "websocket.receive", "text": json.dumps(create())}]

    async def receive() -> Any:
        return coming.pop(0) if coming else await anyio.sleep_forever()

    async def send(message: Any) -> None:
        if message["type"] == "websocket.send":
            await anyio.sleep_forever()

    async def test(app: Any) -> None:
        with anyio.fail_after(PATIENCE_S):
            await app({"type": "websocket", "path": URL, "headers": [], "query_string": b""}, receive, send)
        assert service.sockets_open == 0
        assert service.metrics.transport == {"websockets": 1, "slow_client": 1}

    visit(service, test)


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://testserver", True),
        ("https://chat.example", True),
        ("https://evil.example", False),
        ("null", False),
        ("http://[", False),
    ],
)
def test_origins(origin: str, allowed: bool) -> None:
    def connect() -> str:
        service = make_service(server={"origins": ("https://chat.example",)})
        with client(service) as http, http.websocket_connect(URL, headers={"origin": origin}) as socket:
            socket.send_json(create())
            return said(until_end(socket))

    if allowed:
        assert connect() == "hello"
    else:
        with pytest.raises(WebSocketDenialResponse) as caught:
            connect()
        assert error_of(caught.value) == (403, "origin_not_allowed", "Origin")
