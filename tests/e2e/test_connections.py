"""Connections that begin a request and never finish it, or never finish its head."""

from __future__ import annotations

import http.client
import json
import socket
import time
from pathlib import Path

import pytest

from stepwell.cli.streams_wire import HELLO, frame
from stepwell.tests.e2e.serving import PATIENCE_S, serving

from websockets.sync.client import connect  # isort: skip


@pytest.mark.parametrize(
    ("sent", "told"),
    [
        (b"", b""),
        (b"POST /v1/chat/completions HTTP/1.1\r\nHost: here\r\nX-Half", b"HTTP/1.1 408 "),
        (b"GET /health HTTP/1.1\r\nHost: here\r\n\r\nGET /hea", b"HTTP/1.1 200 "),
    ],
    ids=["nothing", "half a head", "half a second head"],
)
def test_a_head_that_never_ends_is_given_up(sent: bytes, told: bytes) -> None:
    with serving("--set", "server.body_timeout_s=0.3") as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as client:
            client.sendall(sent)
            got = b""
            while part := client.recv(65536):
                got += part
        assert got.startswith(told)
        assert "ok" in server.get("/health")


def test_who_drips_is_given_up_too() -> None:
    """A byte now and then does not win more time."""
    with serving("--set", "server.body_timeout_s=0.5") as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as client:
            client.sendall(b"GET /health HTTP/1.1\r\nX-Long: ")
            client.settimeout(0.05)
            got = b""
            while not got:
                try:
                    client.sendall(b"x")
                    got = client.recv(65536)
                except TimeoutError:
                    continue
        assert got.startswith(b"HTTP/1.1 408 ")


def test_a_head_has_a_length_at_most() -> None:
    with serving() as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as client:
            client.sendall(b"GET /health HTTP/1.1\r\n" + b"X-Long: 0123456789abcdef\r\n" * 4000)
            got = client.recv(65536)
        assert got.startswith(b"HTTP/1.1 431 ")
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as client:
            client.sendall(b"GET /health HTTP/1.1\r\n" + b"X-Long: 0123456789abcdef\r\n" * 1000 + b"\r\n")
            assert client.recv(65536).startswith(b"HTTP/1.1 200 ")


def streaming(port: int) -> socket.socket:
    """A connection with a long answer on its way."""
    body = json.dumps({"stream": True, "messages": [{"role": "user", "content": "z" * 3000}]}).encode()
    client = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n"
    client.sendall(head % len(body) + body)
    assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
    return client


def cut_off(client: socket.socket, data: bytes, most: int) -> bool:
    """Whether it is before it has sent so many bytes."""
    try:
        for _ in range(most // len(data)):
            client.sendall(data)
    except OSError:
        return True
    return False


def read_to_the_end(client: socket.socket) -> None:
    while client.recv(65536):
        pass


def test_a_head_behind_a_running_answer_has_a_length_at_most() -> None:
    with serving(step_us=20_000) as server, streaming(server.port) as client:
        client.sendall(b"GET /health HTTP/1.1\r\n")
        assert cut_off(client, b"X-Long: " + b"y" * 4000 + b"\r\n", 64 << 20)


def test_a_head_behind_a_running_answer_that_never_ends_is_given_up() -> None:
    with serving("--set", "server.body_timeout_s=0.3", step_us=20_000) as server, streaming(server.port) as client:
        client.sendall(b"GET /hea")
        got = b""
        try:
            while part := client.recv(65536):
                got += part
        except ConnectionResetError:
            pass
        assert b"[DONE]" not in got
        assert b"HTTP/1.1 408" not in got


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/nothing"])
def test_who_sends_a_body_that_nobody_wants_is_told_so(path: str) -> None:
    """A client of the plainest kind: it looks at nothing before all is sent."""
    status, goes_on = (413, False) if path.endswith("completions") else (404, True)
    with serving() as server:
        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
        for _ in range(5):
            client.request("POST", path, b"x" * (27 << 20))
            answer = client.getresponse()
            assert answer.status == status
            assert json.loads(answer.read())["error"]["message"]
            assert answer.will_close is not goes_on
        client.close()


def test_a_body_that_nobody_wants_has_a_length_at_most() -> None:
    with serving() as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as client:
            client.sendall(b"POST /v1/nothing HTTP/1.1\r\nHost: here\r\nContent-Length: 1000000000\r\n\r\n")
            assert client.recv(65536).startswith(b"HTTP/1.1 404 ")
            assert cut_off(client, b"x" * 65536, 256 << 20)
        assert "ok" in server.get("/health")


def test_a_body_that_nobody_wants_and_that_never_ends_is_given_up() -> None:
    with serving("--set", "server.body_timeout_s=0.3") as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as client:
            client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: here\r\nContent-Length: 1000000000\r\n\r\nx")
            got = b""
            while part := client.recv(65536):
                got += part
        assert got.startswith(b"HTTP/1.1 413 ")


def test_ws_1_a_socket_outlives_the_time_for_a_head() -> None:
    """The head that asks for it is complete; how long it lives from then on is for other limits to say."""
    with (
        serving("--set", "server.body_timeout_s=0.2") as server,
        connect(f"ws://127.0.0.1:{server.port}/v1/responses", compression=None) as client,
    ):
        time.sleep(0.6)
        client.send(json.dumps({"type": "response.create", "input": "Hi"}))
        assert json.loads(client.recv(PATIENCE_S))["type"] == "response.created"


@pytest.mark.parametrize("over", ["sse", "websocket"])
@pytest.mark.parametrize("letters", [4_000, 100_000])
def test_hs_1_who_takes_nothing_is_cut_off_and_that_is_no_fault_of_the_application(
    letters: int, over: str, tmp_path: Path
) -> None:
    """What waited for it goes at once, and not when the kernel gives the connection up; the log says nothing.

    The same if there is little to take: more than the kernel's part, and no more than may wait.
    """
    errors = tmp_path / "errors"
    settings = ("--set", "server.send_timeout_s=2", "--set", "server.send_buffer_kib=4")
    limits = (*settings, "--set", "server.buffer_kib=4")
    with serving(*limits, step_us=50, errors=errors) as server, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.settimeout(PATIENCE_S)
        client.connect(("127.0.0.1", server.port))
        if over == "sse":
            body = json.dumps({"stream": True, "messages": [{"role": "user", "content": "\1" * letters}]}).encode()
            head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: here\r\nContent-Length: %d\r\n\r\n"
            client.sendall(head % len(body) + body)
        else:
            client.sendall(HELLO % b"here")
            assert client.recv(4).startswith(b"HTTP")
            client.sendall(frame(0x81, json.dumps({"type": "response.create", "input": "\1" * letters}).encode()))
        server.until(lambda: server.metric("stepwell:transport_total", event="slow_client") == 1)
        server.until(lambda: server.idle)
        with pytest.raises(ConnectionResetError):
            read_to_the_end(client)
        assert server.metric("stepwell:transport_total", event="disconnected") == 0
    assert "ASGI" not in errors.read_text()
