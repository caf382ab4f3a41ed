"""The real thing: a process that serves, the OpenAI SDK, WebSockets, clients that leave, signals, and a replay."""

from __future__ import annotations

import asyncio
import json
import random
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepwell.tests.e2e.serving import PATIENCE_S, Server, serving
from stepwell.tests.helpers.small_model import needs_small_model

import openai  # isort: skip
from openai import AsyncOpenAI, OpenAI  # isort: skip
from websockets.asyncio.client import connect  # isort: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving("--set", "server.send_timeout_s=1") as running:
        yield running


def sdk(server: Server) -> OpenAI:
    return OpenAI(base_url=server.url, api_key="none", timeout=PATIENCE_S, max_retries=0)


def test_the_greeting_is_enough_to_begin(server: Server) -> None:
    text = "\n".join(server.greeting)
    for part in ("echo", "policy fcfs", "8192 pages of 16 tokens", server.url):
        assert part in text
    curl = shlex.split(server.greeting[-1].removeprefix("try: "))
    body = json.loads(curl[curl.index("-d") + 1])
    with sdk(server) as client:
        assert client.chat.completions.with_raw_response.create(**body).status_code == 200
    assert server.process.poll() is None
    assert json.loads(server.get("/ready"))["status"] == "ok"


def test_the_sdk_finds_what_it_looks_for(server: Server) -> None:
    with sdk(server) as client:
        assert [each.id for each in client.models.list()] == ["echo"]
        assert client.models.retrieve("echo").id == "echo"
        messages: Any = [{"role": "user", "content": "grüß dich"}]
        whole = client.chat.completions.create(model="echo", messages=messages, n=2, seed=1, stop=["zz"])
        assert [each.message.content for each in whole.choices] == ["grüß dich"] * 2
        assert whole.usage
        assert whole.usage.prompt_tokens == 11
        chunks = list(
            client.chat.completions.create(
                model="echo", messages=messages, stream=True, stream_options={"include_usage": True}
            )
        )
        assert "".join(each.choices[0].delta.content or "" for each in chunks if each.choices) == "grüß dich"
        assert chunks[-1].usage
        assert chunks[-1].usage.total_tokens == 22
        text = client.completions.create(model="echo", prompt=["ab", "cd"], max_tokens=1)
        assert [each.text for each in text.choices] == ["a", "c"]
        with pytest.raises(openai.BadRequestError) as bad:
            client.chat.completions.create(model="echo", messages=messages, temperature=7)
        assert (bad.value.param, bad.value.code) == ("temperature", "invalid_value")
        assert bad.value.request_id
        with pytest.raises(openai.NotFoundError):
            client.chat.completions.create(model="gpt", messages=messages)


async def one(client: AsyncOpenAI, index: int, cut: int) -> str:
    """A stream read to its end, or ``cut`` off after so many chunks."""
    content = f"{index:04}" * (1000 if cut else 10)
    stream = await client.chat.completions.create(
        model="echo", messages=[{"role": "user", "content": content}], stream=True
    )
    got, chunks = "", 0
    async for chunk in stream:
        got += chunk.choices[0].delta.content or ""
        chunks += 1
        if chunks == cut:
            await stream.close()
            break
    assert content.startswith(got)
    return got


def test_in_1_one_limit_is_said_and_kept_to() -> None:
    """The greeting, ``/v1/models``, errors over either transport, and the scheduler: what the pool holds, 2,048."""
    with serving("--set", "memory.pages=128", step_us=1) as server, sdk(server) as client:
        assert server.greeting[-2].endswith("context 2048 tokens")
        (model,) = client.models.list()
        assert (model.model_extra or {})["max_model_len"] == 2048
        for tokens in (2048, 2100):
            with pytest.raises(openai.BadRequestError, match=f"context is 2048 tokens.* has {tokens} tokens") as error:
                client.completions.create(model="echo", prompt=[1] * tokens)
            assert (error.value.code, error.value.param) == ("context_length_exceeded", "prompt")
        assert server.metric("stepwell:steps_total") == 0
        longest = client.completions.create(model="echo", prompt="x" * 2047)
        assert (longest.choices[0].text, longest.choices[0].finish_reason) == ("x", "length")
        half = client.completions.create(model="echo", prompt="x" * 1500, max_tokens=10**9)
        assert (len(half.choices[0].text), half.choices[0].finish_reason) == (548, "length")

        async def over_a_socket() -> str:
            async with connect(server.url.replace("http", "ws") + "/responses") as socket:
                await socket.send(json.dumps({"type": "response.create", "input": "x" * 2048}))
                return str(json.loads(await socket.recv())["error"]["message"])

        assert "context is 2048 tokens" in asyncio.run(over_a_socket())


def test_ab_1_me_2_64_streams_of_which_20_are_cut_off(tmp_path: Path) -> None:
    """Pages all free, counts right, nothing pending; and the journal of it replays."""
    draw = random.Random(3)
    cuts = [draw.randint(1, 12) for _ in range(20)] + [0] * 44
    draw.shuffle(cuts)
    pool = ("--set", "memory.pages=1200", "--policy", "swap")
    with serving("--journal", str(tmp_path), *pool, step_us=1000) as server:

        async def crowd() -> list[str]:
            async with AsyncOpenAI(base_url=server.url, api_key="none", timeout=PATIENCE_S, max_retries=0) as client:
                return await asyncio.gather(*(one(client, index, cut) for index, cut in enumerate(cuts)))

        answers = asyncio.run(crowd())
        whole = [f"{index:04}" * 10 for index, cut in enumerate(cuts) if not cut]
        assert [answer for answer, cut in zip(answers, cuts, strict=True) if not cut] == whole
        server.until(lambda: server.idle)
        success = "vllm:request_success_total"
        assert server.metric(success, finished_reason="stop") == 44
        assert server.metric(success, finished_reason="abort") == 20
        assert server.metric(success) == server.metric("stepwell:requests_accepted_total") == 64
        assert server.metric("vllm:time_to_first_token_seconds_count") <= 64
        assert server.metric("vllm:request_prompt_tokens_sum") == server.metric("vllm:prompt_tokens_total")
        assert server.metric("stepwell:transport_total", event="disconnected") == 20
        assert server.stop() == 0
    (journal,) = tmp_path.glob("*.jsonl")
    command = [sys.executable, "-m", "stepwell", "replay", str(journal)]
    replayed = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert "every decision as recorded" in replayed.stdout


def test_an_answer_names_what_the_journal_calls_it(tmp_path: Path) -> None:
    with serving("--journal", str(tmp_path)) as server, sdk(server) as client:
        for _ in range(2):
            answer = client.completions.with_raw_response.create(model="echo", prompt="abc")
        number = answer.headers["x-stepwell-request"]
        assert server.stop() == 0
    (journal,) = tmp_path.glob("*.jsonl")
    command = [sys.executable, "-m", "stepwell", "explain", str(journal), "--request", number]
    told = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith("Request 2 ")


def test_ws_1_the_sdk_over_a_websocket(server: Server) -> None:
    async def talk() -> dict[str | None, str]:
        said: dict[str | None, str] = {}
        async with AsyncOpenAI(base_url=server.url, api_key="none") as client, client.responses.connect() as lanes:
            for lane in ("one", "two"):
                await lanes.response.create(model="echo", input=f"lane {lane}", stream_id=lane)
            ends = 0
            async for event in lanes:
                if event.type == "response.output_text.delta":
                    lane_of = getattr(event, "stream_id", None)
                    said[lane_of] = said.get(lane_of, "") + event.delta
                elif event.type == "response.completed":
                    assert event.response.output_text == f"lane {getattr(event, 'stream_id', None)}"
                    ends += 1
                    if ends == 2:
                        break
        return said

    assert asyncio.run(talk()) == {"one": "lane one", "two": "lane two"}


def test_ws_1_closing_or_dropping_a_socket_ends_its_lanes() -> None:
    """Of a device so slow that nobody is done before they leave, however late they read."""

    async def leave(server: Server, politely: bool) -> None:
        socket = await connect(server.url.replace("http", "ws") + "/responses", compression=None)
        for lane in ("one", "two"):
            message = {"type": "response.create", "input": "x" * 4000, "stream_id": lane}
            await socket.send(json.dumps(message))
        deltas = 0
        while deltas < 10:
            deltas += json.loads(await socket.recv())["type"] == "response.output_text.delta"
        if politely:
            await socket.close()
        else:
            socket.transport.abort()

    async def crowd(server: Server) -> None:
        await asyncio.gather(*(leave(server, index % 2 == 0) for index in range(8)))

    with serving("--set", "server.send_timeout_s=1", step_us=20_000) as server:
        asyncio.run(crowd(server))
        server.until(lambda: server.idle)
        assert server.metric("vllm:request_success_total", finished_reason="abort") == 16
        server.until(lambda: server.metric("stepwell:transport_total", event="disconnected") == 4)


def test_in_4_a_huge_body_is_refused_while_streams_run(server: Server) -> None:
    """HC-3, the part that needs no clock: everybody gets the whole answer."""

    async def crowd() -> list[str]:
        async with AsyncOpenAI(base_url=server.url, api_key="none", timeout=PATIENCE_S, max_retries=0) as client:
            huge = client.chat.completions.create(
                model="echo", messages=[{"role": "user", "content": "x" * 27_000_000}]
            )
            streams = [one(client, index, 0) for index in range(25)]
            refused, *answers = await asyncio.gather(huge, *streams, return_exceptions=True)
            assert isinstance(refused, openai.APIStatusError | openai.APIConnectionError), refused
            return [str(answer) for answer in answers]

    assert asyncio.run(crowd()) == [f"{index:04}" * 10 for index in range(25)]
    server.until(lambda: server.idle)


@pytest.mark.slow
def test_hs_1_a_client_that_never_reads_is_dropped(server: Server) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "x" * 30_000}], "stream": True})
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.socket() as never:
        never.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        never.connect(("127.0.0.1", server.port))
        never.sendall((head + body).encode())
        server.until(lambda: server.metric("stepwell:transport_total", event="slow_client") == 1)
        server.until(lambda: server.idle)
        assert server.metric("vllm:generation_tokens_total") < 30_000


def test_sigterm_lets_what_runs_end_and_takes_nothing_new() -> None:
    with serving(step_us=2000) as server, sdk(server) as client:
        content = "end well " * 40
        messages: Any = [{"role": "user", "content": content}]
        stream = client.chat.completions.create(model="echo", messages=messages, stream=True)
        got = next(iter(stream)).choices[0].delta.content or ""
        server.process.terminate()
        server.until(lambda: _status(server, "/ready") == 503)
        with pytest.raises(openai.APIStatusError) as refused:
            client.chat.completions.create(model="echo", messages=messages)
        assert refused.value.status_code == 503
        assert refused.value.response.headers["retry-after"]
        for chunk in stream:
            got += chunk.choices[0].delta.content or ""
        assert got == content
        assert server.process.wait(PATIENCE_S) == 0


def _status(server: Server, path: str) -> int:
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as raw:
        raw.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        return int(raw.makefile("rb").readline().split()[1])


def test_a_second_sigterm_stops_at_once() -> None:
    with serving(step_us=100_000) as server, sdk(server) as client:
        messages: Any = [{"role": "user", "content": "x" * 10_000}]
        stream = client.chat.completions.create(model="echo", messages=messages, stream=True)
        next(iter(stream))
        assert server.stop(signals=2) == 0


@pytest.mark.slow
def test_a_real_model_answers() -> None:
    needs_small_model()
    small = ("--set", "memory.pages=256", "--set", "memory.host_pages=0", "--set", "scheduler.token_budget=256")
    with serving("--model", "smollm2", *small) as server, sdk(server) as client:
        messages: Any = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
        asked: Any = {"model": "smollm2", "messages": messages, "temperature": 0, "max_tokens": 16}
        whole = client.chat.completions.create(**asked, logprobs=True)
        content = whole.choices[0].message.content or ""
        assert "Paris" in content
        assert whole.choices[0].finish_reason == "stop"
        logprobs = whole.choices[0].logprobs
        assert logprobs
        assert "".join(each.token for each in logprobs.content or []) == content
        pieces = client.chat.completions.create(**asked, stream=True)
        assert "".join(each.choices[0].delta.content or "" for each in pieces) == content
        _echoes_alike(client)
        server.until(lambda: server.idle)
        assert server.stop() == 0


def _echoes_alike(client: OpenAI) -> None:
    """The prompt and its log-probabilities, in one piece, streamed, and with no answer at all."""
    prompt = "The sky is blue, and the grass is"
    asked: Any = {"model": "smollm2", "prompt": prompt, "echo": True, "logprobs": 1, "temperature": 0}
    whole = client.completions.create(**asked, max_tokens=3).choices[0]
    assert whole.logprobs
    assert whole.text.startswith(prompt)
    assert "".join(whole.logprobs.tokens or []) == whole.text
    pieces = [each.choices[0] for each in client.completions.create(**asked, max_tokens=3, stream=True)]
    assert "".join(each.text for each in pieces) == whole.text
    values = [value for each in pieces if each.logprobs for value in each.logprobs.token_logprobs or []]
    assert values[0] is None
    assert values[1:] == pytest.approx((whole.logprobs.token_logprobs or [])[1:], abs=0.05)
    nothing = client.completions.create(**asked, max_tokens=0)
    assert nothing.usage
    assert (nothing.choices[0].text, nothing.usage.completion_tokens) == (prompt, 0)
    assert nothing.choices[0].logprobs
    assert len(nothing.choices[0].logprobs.tokens or []) == nothing.usage.prompt_tokens


def test_what_cannot_be_served_is_said_in_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        for arguments, words in (
            (("--port", str(taken.getsockname()[1])), "cannot listen at"),
            (("--port", "99999"), "server.port"),
            (("--policy", "nope"), "scheduler.policy"),
            (("--set", "server.prot=1"), "did you mean 'port'"),
            (("--set", "memory.pages=128", "--set", "scheduler.max_context=8192"), "= 2048"),
            (("--set", "scheduler.running_limit=512", "--set", "scheduler.token_budget=64"), "must be at least"),
        ):
            command = [sys.executable, "-m", "stepwell", "serve", *arguments]
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
            assert done.returncode == 2, done.stderr
            assert words in done.stderr
            assert done.stderr.count("\n") == 1
