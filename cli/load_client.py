"""A load client: streams completions from any OpenAI-compatible server on the loopback, and notes when text came.

Answers are checked: a request that did not get as many tokens as it asked for has a problem, and says which.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
import urllib.request
from collections.abc import AsyncIterator, Sequence
from urllib.error import URLError
from urllib.parse import urlsplit

import msgspec

from stepwell.core.errors import UserError
from stepwell.core.types import NS_PER_S

PATIENCE_S = 600.0
"""For one answer."""

_MOST_HEAD = 1 << 16
_SHOWN = 300


class Ask(msgspec.Struct, frozen=True):
    """A prompt in token ids, and how many tokens the answer is to have."""

    prompt: list[int]
    tokens: int


class Answer(msgspec.Struct):
    """What came of one request; times by a clock without origin.  ``chunks_ns``: when each piece of text came.

    ``due_ns`` is when it was to be sent, and what its latency counts from: what the client is late by, the user waits.
    """

    due_ns: int = 0
    sent_ns: int = 0
    chunks_ns: list[int] = []
    done_ns: int = 0
    tokens: int = 0
    """As the server counted them."""
    problem: str = ""

    @property
    def ttft_ns(self) -> int:
        return self.chunks_ns[0] - self.due_ns

    @property
    def gaps_ns(self) -> list[int]:
        return [after - before for before, after in zip(self.chunks_ns, self.chunks_ns[1:], strict=False)]


class _Choice(msgspec.Struct):
    text: str | None = None


class _Usage(msgspec.Struct):
    completion_tokens: int = 0


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: msgspec.Raw = msgspec.Raw()


class _Listed(msgspec.Struct):
    id: str
    owned_by: str = ""
    precision: str = ""
    """Ours says it; of others the user does."""


class _Models(msgspec.Struct):
    data: list[_Listed]


_chunks = msgspec.json.Decoder(_Chunk)


class Server(msgspec.Struct, frozen=True):
    """Where it listens, and what it calls its model."""

    host: str
    port: int
    model: str = ""
    precision: str = ""


def look(url: str) -> Server:
    """The server at ``url`` (with or without ``/v1``).  Raises ``UserError`` if it is not on the loopback, or none."""
    parts = urlsplit(url if "//" in url else f"http://{url}")
    host = parts.hostname or ""
    try:
        local = host == "localhost" or ipaddress.ip_address(host).is_loopback
        port = parts.port or 80
    except ValueError:
        local = False
    if not local or parts.scheme != "http":
        raise UserError(
            f"only servers on the loopback are measured, as http://127.0.0.1:8000; not {url!r}", field="url"
        )
    shown = f"[{host}]" if ":" in host else host
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"http://{shown}:{port}/v1/models", timeout=30) as reply:
            listed = msgspec.json.decode(reply.read(), type=_Models).data
    except (URLError, OSError, msgspec.DecodeError) as error:
        raise UserError(f"no OpenAI-compatible server answers at {url}: {error}", field="url") from None
    if not listed:
        raise UserError(f"the server at {url} lists no model", field="url")
    return Server(host, port, listed[0].id, listed[0].precision)


COARSE_NS = 2_000_000
"""An event loop wakes up to a millisecond late; before a request is due it is asked again and again."""
MOST_LATE = 0.05
"""Part of the time to the first token that may be the client's own; with more a run says nothing of the server."""


def late_share(answers: Sequence[Answer]) -> float:
    """Which part of the time to the first token requests spent in the client, all together (SI-5)."""
    told = [each for each in answers if each.chunks_ns]
    waited_ns = sum(each.ttft_ns for each in told)
    return sum(each.sent_ns - each.due_ns for each in told) / waited_ns if waited_ns else 0.0


def play(server: Server, asks: Sequence[Ask], concurrency: int, rate: float = 0.0) -> list[Answer]:
    """Send ``asks`` in order, as many at once as ``concurrency`` says; the answers, in the same order.

    With a ``rate`` (requests a second) each is sent at its time, however many are at once (an open loop).
    """
    return asyncio.run(_play_at(server, asks, rate) if rate else _play(server, asks, concurrency))


async def _play_at(server: Server, asks: Sequence[Ask], rate: float) -> list[Answer]:
    """One every 1 / ``rate`` seconds."""
    start_ns = time.perf_counter_ns()
    answers = [Answer(due_ns=start_ns + round(place * NS_PER_S / rate)) for place in range(len(asks))]
    async with asyncio.TaskGroup() as tasks:
        for ask, answer in zip(asks, answers, strict=True):
            while (early_ns := answer.due_ns - time.perf_counter_ns()) > 0:
                await asyncio.sleep(max(0, early_ns - COARSE_NS) / NS_PER_S)
            tasks.create_task(_one(server, ask, answer))
    return answers


async def _play(server: Server, asks: Sequence[Ask], concurrency: int) -> list[Answer]:
    answers = [Answer() for _ in asks]
    waiting = iter(zip(asks, answers, strict=True))

    async def client() -> None:
        for ask, answer in waiting:
            await _one(server, ask, answer)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(min(concurrency, len(asks))):
            tasks.create_task(client())
    return answers


async def _one(server: Server, ask: Ask, answer: Answer) -> None:
    """One request over a connection of its own; whatever goes wrong is its problem."""
    answer.chunks_ns = []
    body = msgspec.json.encode(
        {
            "model": server.model,
            "prompt": ask.prompt,
            "max_tokens": ask.tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )
    answer.sent_ns = time.perf_counter_ns()
    answer.due_ns = answer.due_ns or answer.sent_ns  # a client that waits for its answer is never late
    try:
        async with asyncio.timeout(PATIENCE_S):
            await _exchange(server, body, answer)
    except (OSError, EOFError, ValueError, TimeoutError, asyncio.LimitOverrunError) as error:
        answer.problem = answer.problem or f"{type(error).__name__}: {error}"
    answer.done_ns = time.perf_counter_ns()
    if not answer.problem and answer.tokens != ask.tokens:
        answer.problem = f"asked for {ask.tokens} tokens, got {answer.tokens}"
    if not answer.problem and not answer.chunks_ns:
        answer.problem = f"{answer.tokens} tokens, and no text at all"


async def _exchange(server: Server, body: bytes, answer: Answer) -> None:
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {server.host}:{server.port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nAccept: text/event-stream\r\nConnection: close\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(server.host, server.port, limit=_MOST_HEAD)
    try:
        writer.write(head.encode() + body)
        status, *fields = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
        chunked = any(field.startswith("transfer-encoding:") and "chunked" in field for field in fields)
        lines = _lines(reader, chunked=chunked)
        if status.split(" ")[1:2] != ["200"]:
            told = b" ".join([line async for line in lines]).decode("utf-8", "replace")
            answer.problem = f"{status.strip()}: {told[:_SHOWN]}"
            return
        async for line in lines:
            if line.startswith(b"data:"):
                _take(line[5:].strip(), answer)
    finally:
        writer.close()


def _take(data: bytes, answer: Answer) -> None:
    """One event of the stream."""
    now_ns = time.perf_counter_ns()
    if data == b"[DONE]":
        return
    chunk = _chunks.decode(data)
    if bytes(chunk.error) not in (b"", b"null"):
        answer.problem = bytes(chunk.error).decode("utf-8", "replace")[:_SHOWN]
    if chunk.usage is not None:
        answer.tokens = chunk.usage.completion_tokens
    if any(choice.text for choice in chunk.choices):
        answer.chunks_ns.append(now_ns)


async def _lines(reader: asyncio.StreamReader, *, chunked: bool) -> AsyncIterator[bytes]:
    """The body, line by line as it comes."""
    rest = b""
    while piece := await (_chunk(reader) if chunked else reader.read(_MOST_HEAD)):
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line
    if rest:
        yield rest


async def _chunk(reader: asyncio.StreamReader) -> bytes:
    """One chunk of a chunked body; empty after the last."""
    size = int((await reader.readline()).partition(b";")[0], 16)
    return (await reader.readexactly(size + 2))[:-2] if size else b""
