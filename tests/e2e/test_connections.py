"""Connections that begin a request and never finish it."""

from __future__ import annotations

import socket

import pytest

from stepwell.tests.e2e.serving import PATIENCE_S, serving


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
