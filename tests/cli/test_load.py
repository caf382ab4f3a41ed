"""The load client and its requests: lengths, places, figures, and what it makes of servers that misbehave."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stepwell.cli.bench_engine import WORKLOADS, _figures
from stepwell.cli.load_client import MOST_LATE, Answer, Ask, Server, late_share, look, play
from stepwell.cli.load_requests import LONGEST, Prompts, encoder_of, lengths, own_corpus, read_corpus
from stepwell.core.errors import UserError
from stepwell.core.words import WordTokenizer

MS = 1_000_000


def test_a_rehearsals_prompts_are_in_its_own_tokens() -> None:
    text = "How deep is the well?"
    assert WordTokenizer().decode(encoder_of("costmodel")(text)) == text.encode()


def test_lengths_are_those_of_the_common_engine_workload() -> None:
    drawn = lengths()
    assert (sum(prompt for prompt, _ in drawn), sum(output for _, output in drawn)) == (15_790, 7_963)
    assert len(drawn) == 64
    assert lengths(3) == drawn[:3]


def test_no_two_prompts_begin_at_one_place() -> None:
    ids = list(range(1000))
    prompts = Prompts(ids)
    cut = [prompts.ask(LONGEST, 1).prompt for _ in range(1000)]
    assert {each[0] for each in cut} == set(ids)
    assert all(each == [(each[0] + place) % 1000 for place in range(LONGEST)] for each in cut)
    assert [Prompts(ids, run=1).ask(4, 1) for _ in range(3)] != [Prompts(ids).ask(4, 1) for _ in range(3)]
    assert Prompts(ids, run=1).ask(4, 1) == Prompts(ids, run=1).ask(4, 1)


def test_a_corpus_is_the_license_or_a_file(tmp_path: Path) -> None:
    assert bytes(own_corpus(encoder_of("echo"))).decode().lstrip().startswith("Apache License")
    file = tmp_path / "ids.json"
    for content, says in (("[1, 2", "not a list of token ids"), ('["a"]', "not a list of token ids"), ("[1]", "512")):
        file.write_text(content)
        with pytest.raises(UserError, match=says):
            Prompts(read_corpus(file))
    with pytest.raises(UserError, match="cannot read"):
        read_corpus(tmp_path / "nowhere.json")


def test_figures_by_hand() -> None:
    asks = [Ask([1] * 100, 3), Ask([1] * 100, 3)]
    first = Answer(sent_ns=0, chunks_ns=[10 * MS, 20 * MS, 40 * MS], done_ns=50 * MS, tokens=3)
    second = Answer(due_ns=20 * MS, sent_ns=20 * MS, chunks_ns=[50 * MS, 60 * MS, 61 * MS], done_ns=100 * MS, tokens=3)
    figures = _figures(WORKLOADS["concurrency-16"], asks, [first, second])
    assert figures == {"tokens_per_s": 60.0, "ttft_p50_ms": 10.0, "itl_p50_ms": 10.0, "itl_p99_ms": 20.0}
    late = Answer(due_ns=5 * MS, sent_ns=6 * MS, chunks_ns=[25 * MS], tokens=1)
    prefill = _figures(WORKLOADS["prefill-512"], asks[:1], [late])
    assert prefill == {"tokens_per_s": 5000.0, "ttft_p50_ms": 20.0}
    assert _figures(WORKLOADS["prefill-512"], asks, [Answer(problem="gone"), Answer(problem="gone")]) == {}


# ------------------------------------------------------------------------------------------------ the wire


@contextmanager
def answering(raw: bytes, *, pieces: int = 0) -> Iterator[Server]:
    """A server that says ``raw`` to everybody, in so many bytes at a time, and hangs up."""
    loop = asyncio.new_event_loop()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        step = pieces or len(raw)
        for start in range(0, len(raw), step):
            writer.write(raw[start : start + step])
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    server = loop.run_until_complete(asyncio.start_server(answer, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield Server("127.0.0.1", server.sockets[0].getsockname()[1])
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


EVENTS = (
    b': ping\n\ndata: {"choices": [{"text": "a"}]}\n\ndata: {"choices": [{"text": ""}]}\r\n\r\n'
    b'data: {"choices": [{"text": "b"}], "usage": null}\n\n'
    b'data: {"choices": [], "usage": {"completion_tokens": 2}}\n\ndata: [DONE]\n\n'
)
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def in_chunks(body: bytes, size: int) -> bytes:
    parts = [body[start : start + size] for start in range(0, len(body), size)]
    return b"".join([b"%x\r\n%s\r\n" % (len(part), part) for part in parts]) + b"0\r\n\r\n"


@pytest.mark.parametrize("pieces", [0, 7])
@pytest.mark.parametrize("raw", [PLAIN + EVENTS, CHUNKED + in_chunks(EVENTS, 13)], ids=["plain", "chunked"])
def test_a_stream_is_read_however_it_is_cut(raw: bytes, pieces: int) -> None:
    with answering(raw, pieces=pieces) as server:
        for answer in play(server, [Ask([1], 2)] * 3, 2):
            assert (answer.problem, answer.tokens, len(answer.chunks_ns)) == ("", 2, 2)
            assert answer.sent_ns < answer.chunks_ns[0] <= answer.chunks_ns[1] <= answer.done_ns


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (PLAIN + EVENTS, "asked for 5 tokens, got 2"),
        (CHUNKED + in_chunks(EVENTS, 50)[:-40], "IncompleteReadError"),
        (PLAIN + b'data: {"error": {"message": "no room"}}\n\n', "no room"),
        (PLAIN + b"data: {oops\n\n", "malformed"),
        (PLAIN + b'data: {"choices": [], "usage": {"completion_tokens": 5}}\n\n', "no text at all"),
        (b"HTTP/1.1 503 Busy\r\n\r\n{later}", "503 busy: {later}"),
        (b"nonsense\r\n\r\n", "nonsense: "),
        (b"", "IncompleteReadError"),
    ],
)
def test_what_goes_wrong_is_said(raw: bytes, says: str) -> None:
    with answering(raw) as server:
        (answer,) = play(server, [Ask([1], 5)], 1)
        assert says in answer.problem


def test_si_5_latency_counts_from_when_a_request_was_due() -> None:
    """A server of 5 ms: of a client that sends 1 ms late, a sixth of the wait is its own, and the run is invalid."""
    on_time = Answer(due_ns=10 * MS, sent_ns=10 * MS, chunks_ns=[15 * MS])
    late = Answer(due_ns=10 * MS, sent_ns=11 * MS, chunks_ns=[16 * MS])
    assert (on_time.ttft_ns, late.ttft_ns) == (5 * MS, 6 * MS)
    assert late_share([on_time, on_time]) == 0
    assert late_share([late, late]) == pytest.approx(1 / 6)
    assert late_share([late, late]) > MOST_LATE > late_share([late, *[on_time] * 9])
    assert late_share([]) == late_share([Answer(problem="gone")]) == 0


def test_si_5_an_open_loop_sends_at_2000_a_second_whoever_answers() -> None:
    with answering(PLAIN + EVENTS) as server:
        answers = play(server, [Ask([1], 2)] * 40, 1, rate=2000.0)
    first = answers[0].due_ns
    assert [each.due_ns - first for each in answers] == [place * MS // 2 for place in range(40)]
    assert all(each.due_ns <= each.sent_ns < each.chunks_ns[0] for each in answers)
    assert {each.problem for each in answers} == {""}
    (alone,) = play(server_of_nobody(), [Ask([1], 2)], 1)
    assert alone.due_ns == alone.sent_ns


def server_of_nobody() -> Server:
    """Nobody listens on its port: it was given back."""
    with answering(PLAIN) as server:
        return server


def test_only_a_server_on_the_loopback_is_measured() -> None:
    for url in ("http://example.com:80", "http://10.0.0.1", "https://127.0.0.1", "http://127.0.0.1:99999", "nonsense"):
        with pytest.raises(UserError, match="on the loopback"):
            look(url)
    with answering(b"HTTP/1.1 200 OK\r\n\r\n[]") as server, pytest.raises(UserError, match="no OpenAI-compatible"):
        look(f"127.0.0.1:{server.port}")
    listed = b'{"data": [{"id": "m", "precision": "bfloat16"}]}'
    with answering(b"HTTP/1.1 200 OK\r\n\r\n" + listed) as server:
        assert look(f"127.0.0.1:{server.port}/v1") == Server("127.0.0.1", server.port, "m", "bfloat16")
