"""Names of requests: the one that every answer has, and what clients are told of the journal's numbers."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.tests.transports.house import chat, client, make_service

from starlette.testclient import TestClient, WebSocketDenialResponse  # isort: skip
from starlette.websockets import WebSocketDisconnect  # isort: skip
from stepwell.transports.gateway.digests import digest_of
from stepwell.transports.http.admin_app import create_admin_app
from stepwell.transports.http.app import create_app
from stepwell.transports.http.openapi import listed
from stepwell.transports.request_names import RequestNames

KEYS = {name: f"sw-{name * 43}" for name in "ab"}
KEYED: dict[str, Any] = {
    "keys": [{"name": name, "digest": digest_of(key.encode()), "tenant": name} for name, key in KEYS.items()]
}


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {KEYS[name]}"}


@pytest.mark.parametrize("keyed", [True, False])
def test_in_6_every_answer_of_every_route_has_a_name(keyed: bool) -> None:
    """Refused or not, of a path that there is or not, and with whatever method."""
    service = make_service(**KEYED if keyed else {})
    app = create_app(service)
    with TestClient(app, raise_server_exceptions=False) as http:
        paths = [*{path.replace("{id:path}", "x").replace("{id}", "x") for _, path in listed(app.routes)}, "/nothing"]
        sent = itertools.cycle(("mine-1", None, "not nice!"))
        for path, method in itertools.product(paths, ("GET", "POST")):
            given = next(sent)
            answer = http.request(method, path, headers={"X-Request-Id": given} if given else {})
            name = answer.headers.get("x-request-id", "")
            assert name == given if given == "mine-1" else name.startswith("req-"), (method, path, answer)


@pytest.mark.parametrize("path", ["/nothing", "/v1/chat/completions", "/"])
def test_a_handshake_where_there_is_no_socket_is_told_so(path: str) -> None:
    with (
        client(make_service()) as http,
        pytest.raises(WebSocketDenialResponse) as refused,
        http.websocket_connect(path),
    ):
        pass
    answer: Any = refused.value
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
    assert answer.headers["x-request-id"].startswith("req-")


def test_preflights_metrics_and_the_operators_port_have_names_too() -> None:
    service = make_service(server={"origins": ["https://a.example"]}, admin={"port": 0})
    with client(service) as http:
        asked = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
        assert http.options("/v1/chat/completions", headers=asked).headers["x-request-id"]
        assert http.get("/metrics").headers["x-request-id"]
    admin = TestClient(create_admin_app(service), raise_server_exceptions=False)
    assert admin.get("/admin/config").headers["x-request-id"]
    assert admin.get("/nothing").headers["x-request-id"]


def test_handshakes_have_names_refused_or_not() -> None:
    service = make_service(**KEYED)
    with client(service) as http:
        with http.websocket_connect("/v1/responses", headers={**bearer("a"), "X-Request-Id": "mine"}) as socket:
            head: Any = socket.extra_headers
            assert dict(head).get(b"x-request-id") == b"mine"
        for path in ("/v1/responses", "/nothing"):
            with pytest.raises(WebSocketDisconnect) as refused, http.websocket_connect(path):
                pass
            answer: Any = refused.value
            assert getattr(answer, "headers", {}).get("x-request-id", "").startswith("req-"), path


# ------------------------------------------------------------------------------------------------ numbers


@given(numbers=st.lists(st.integers(1, 2**62 - 1), min_size=1, max_size=5, unique=True))
def test_names_stand_for_one_number_each(numbers: list[int]) -> None:
    hidden, other, plain = RequestNames(lambda: True), RequestNames(lambda: True), RequestNames(lambda: False)
    told = hidden.told(numbers).split(",")
    assert [hidden.number(each) for each in told] == numbers
    assert len(set(told)) == len(told)
    assert {len(each) for each in told} == {16}
    assert not set(told) & set(other.told(numbers).split(","))
    assert plain.told(numbers) == ",".join(map(str, numbers))


@pytest.mark.parametrize("text", ["", "x", "1" * 17, "12345678-1234567", "é", "٣", "0123456789ABCDEF"])
def test_what_is_no_name_stands_for_nothing(text: str) -> None:
    assert RequestNames(lambda: True).number(text) is None


def test_tenants_cannot_count_each_others_requests() -> None:
    """Where there are keys; the operator finds the number behind a name, also when the request has ended."""
    service = make_service(**KEYED)
    with TestClient(create_app(service, guards=())) as http:
        told = [
            http.post("/v1/chat/completions", json=chat(stream=stream), headers=bearer(name)).headers[
                "x-stepwell-request"
            ]
            for name, stream in (("a", False), ("b", True), ("a", True))
        ]
        with http.websocket_connect("/v1/responses", headers=bearer("b")) as socket:
            socket.send_json({"type": "response.create", "input": "hi"})
            told.append(socket.receive_json()["response"]["metadata"]["stepwell_request"])
            while socket.receive_json()["type"] != "response.completed":
                pass
    assert [service.names.number(each) for each in told] == [1, 2, 3, 4]
    assert not any(each.isdigit() and int(each) < 100 for each in told)
    with TestClient(create_app(make_service()), client=("127.0.0.1", 1), base_url="http://127.0.0.1") as http:
        answer = http.post("/v1/chat/completions", json=chat())
        assert answer.headers["x-stepwell-request"] == "1"
        name = http.app.state.service.names._name(1)  # type: ignore[attr-defined]
        gone = http.get(f"/admin/requests/{name}")
        assert gone.status_code == 404
        assert "(1 in the journal)" in gone.json()["error"]["message"]
