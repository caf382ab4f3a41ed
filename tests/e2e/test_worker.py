"""The worker process of a real server dies, hangs, or loses its server; clients and probes are told the truth."""

from __future__ import annotations

import os
import re
import signal
import urllib.error
from typing import Any

import pytest

from stepwell.tests.e2e.serving import PATIENCE_S, Server, serving
from stepwell.tests.helpers.small_model import needs_small_model

import openai  # isort: skip
from openai import OpenAI  # isort: skip


def sdk(server: Server) -> OpenAI:
    return OpenAI(base_url=server.url, api_key="none", timeout=PATIENCE_S, max_retries=0)


def worker_of(server: Server) -> int:
    found = re.search(r"worker process (\d+)", "\n".join(server.greeting))
    assert found
    return int(found[1])


def status(server: Server, path: str) -> int:
    try:
        server.get(path)
    except urllib.error.HTTPError as error:
        return error.code
    return 200


def gone(pid: int) -> bool:
    """Ended, and collected by whoever has to."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def said(chunk: Any) -> str:
    return chunk.choices[0].delta.content or "" if chunk.choices else ""


def test_ro_3_a_killed_worker_costs_a_pause_and_not_a_word() -> None:
    """Streams go on where they were, the port stays open, and the count of restarts is a metric."""
    content = "not a word is lost, and none is said twice; " * 12
    asked: Any = {"model": "echo", "messages": [{"role": "user", "content": content}], "stream": True}
    with serving(step_us=3000) as server, sdk(server) as client:
        streams = [client.chat.completions.create(**asked, stream_options={"include_usage": True}) for _ in range(4)]
        texts = [said(next(iter(stream))) for stream in streams]
        os.kill(worker_of(server), signal.SIGKILL)
        assert status(server, "/health") == 200
        for index, stream in enumerate(streams):
            chunks = list(stream)
            texts[index] += "".join(map(said, chunks))
            assert chunks[-1].usage.completion_tokens == len(content)
            assert [each.choices[0].finish_reason for each in chunks if each.choices][-1] == "stop"
        assert texts == [content] * 4
        assert server.metric("stepwell:worker_restarts_total") == 1
        assert status(server, "/ready") == 200
        server.until(lambda: server.idle)
        assert gone(worker_of(server))
        assert server.stop() == 0


def test_hc_1_a_worker_that_hangs_is_alive_and_not_ready() -> None:
    with serving("--set", "server.stall_s=0.5", step_us=2000) as server, sdk(server) as client:
        os.kill(worker_of(server), signal.SIGSTOP)
        assert status(server, "/ready") == 200, "without work it is ready"
        asked: Any = {"model": "echo", "messages": [{"role": "user", "content": "x" * 100}]}
        stream = client.chat.completions.create(**asked, stream=True)
        server.until(lambda: status(server, "/ready") == 503)
        assert status(server, "/health") == 200
        os.kill(worker_of(server), signal.SIGCONT)
        assert "".join(map(said, stream)) == "x" * 100
        assert status(server, "/ready") == 200
        assert server.stop() == 0


def test_a_worker_that_hangs_does_not_hold_its_server() -> None:
    with serving("--set", "server.drain_s=0.1", step_us=2000) as server, sdk(server) as client:
        messages: Any = [{"role": "user", "content": "x" * 5000}]
        stream = client.chat.completions.create(model="echo", messages=messages, stream=True)
        next(iter(stream))
        worker = worker_of(server)
        os.kill(worker, signal.SIGSTOP)
        server.process.terminate()
        with pytest.raises(openai.APIError, match="shutting down"):
            list(stream)
        assert server.process.wait(PATIENCE_S) == 0
        assert gone(worker)


def test_the_worker_goes_with_its_server() -> None:
    with serving() as server:
        worker = worker_of(server)
        assert not gone(worker)
        server.process.kill()
        server.process.wait(PATIENCE_S)
        server.until(lambda: gone(worker))


@pytest.mark.parametrize("placement", ["thread", "inline"])
def test_other_placements_serve_too(placement: str) -> None:
    with serving("--set", f"model.placement={placement}") as server, sdk(server) as client:
        asked: Any = {"model": "echo", "messages": [{"role": "user", "content": "hello"}]}
        assert client.chat.completions.create(**asked).choices[0].message.content == "hello"
        assert server.stop() == 0


@pytest.mark.slow
def test_ro_3_a_real_model_goes_on_to_the_letter() -> None:
    """Greedy and seeded, killed in the middle, the answers are those of an undisturbed server."""
    needs_small_model()
    small = ("--set", "memory.pages=128", "--set", "memory.host_pages=0", "--set", "scheduler.token_budget=256")
    exact = ("--set", "model.deterministic=true", "--set", "model.threads=1")
    messages: Any = [{"role": "user", "content": "Tell me about the sea."}]
    asked: Any = {"model": "smollm2", "messages": messages, "max_tokens": 24, "stream": True}
    ways: Any = [{"temperature": 0}, {"temperature": 0.8, "seed": 5}]
    with serving("--model", "smollm2", *small, *exact) as server, sdk(server) as client:
        whole = ["".join(map(said, client.chat.completions.create(**asked, **way))) for way in ways]
        streams = [iter(client.chat.completions.create(**asked, **way)) for way in ways]
        texts = ["".join(said(next(stream)) for _ in range(4)) for stream in streams]
        os.kill(worker_of(server), signal.SIGKILL)
        texts = [text + "".join(map(said, stream)) for text, stream in zip(texts, streams, strict=True)]
        assert texts == whole
        assert all(texts)
        assert server.metric("stepwell:worker_restarts_total") == 1
        assert server.stop() == 0
