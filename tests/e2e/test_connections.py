"""Connections that begin a request and never finish it, or never finish its head."""

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


def test_a_head_has_a_length_at_most() -> None:
    with serving() as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as client:
            try:
                client.sendall(b"GET /health HTTP/1.1\r\n" + b"X-Long: 0123456789abcdef\r\n" * 4000)
                got = client.recv(65536)
            except ConnectionResetError:  # what it had not read yet takes the answer with it
                got = b"HTTP/1.1 431 "
        assert got.startswith(b"HTTP/1.1 431 ")
        with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as client:
            client.sendall(b"GET /health HTTP/1.1\r\n" + b"X-Long: 0123456789abcdef\r\n" * 1000 + b"\r\n")
            assert client.recv(65536).startswith(b"HTTP/1.1 200 ")
