"""Who is there while a real model's steps are measured: ``stepwell bench streams --scenario steps --model MODEL``.

A real model's batch seldom holds thousands of requests, so the same few run in every round, and whoever else is there
waits in line: asks, is told its place, loses patience, leaves and comes back.  With ``--few`` as large as the crowd all
of it runs and streams; in the other rounds a few clients ask for as many answers and do not stream them.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from time import perf_counter_ns

import msgspec

from stepwell.cli.bench_server import OwnServer
from stepwell.cli.process_stats import children, command_line, keep_to
from stepwell.cli.streams_beside import TOKENS, Round, Rounds, Runner
from stepwell.cli.streams_crowd import Crowd, User
from stepwell.cli.streams_probe import OPEN, WAITING, Moment
from stepwell.cli.streams_rounds import RUNNER
from stepwell.cli.streams_scenarios import PAGE
from stepwell.cli.streams_tally import Heard
from stepwell.cli.streams_wire import SocketCalls, SseCall, post

ROUNDS = 4
"""Without company, with it, without, with it; before them one that nobody counts."""
RUNNING = "vllm:num_requests_running"
WORKER = "stepwell.core.worker"
"""In the command line of the process that executes steps."""
CHOICES = 1000
"""Answers that one client asks for at once."""
_PROMPT = 96
"""Tokens, at most."""
_JOINED_PER_S = 400
_LEAST_PATIENCE_S = 1.0
_MOST = 0.99
"""Of a crowd that comes and goes is in line at once."""
_SAID = "say what you like, and go on"


def together(args: argparse.Namespace) -> bool:
    """Whether everybody runs, and nobody is in line."""
    return bool(args.few == args.users)


def settings(args: argparse.Namespace) -> list[str]:
    """A batch that those who run fill, and a policy by which they come before the crowd, however old that is."""
    pages = args.few * -(-(_PROMPT + (args.tokens or TOKENS)) // PAGE)
    batch = [
        f"scheduler.running_limit={args.few}",
        f"scheduler.token_budget={max(2048, _PROMPT * args.few)}",  # all prompts at once
        f"memory={{pages={pages},page_size={PAGE},host_pages=0}}",
    ]
    if together(args):
        return [*batch, "server.max_choices=1024"]
    return [*batch, "scheduler.policy=priority", "scheduler.options={aging_s=1e9}"]


async def measure(args: argparse.Namespace, server: OwnServer) -> tuple[list[Round], list[str]]:
    """The rounds but the first, which nobody counts, and what should not have happened."""
    it = Rounds(args, server)
    with apart(server.pid):
        return await _measured(it)


@contextmanager
def apart(server: int) -> Iterator[None]:
    """The first core is the server's and this process's, all others are its worker's.

    Where three processes want two cores, a step would take as long as the system keeps the worker waiting.
    """
    mine = os.sched_getaffinity(0)
    first, *others = sorted(mine)
    if not others:
        yield
        return
    for each in children(server):
        keep_to(each, others if WORKER in command_line(each) else [first])
    keep_to(server, [first])
    keep_to(os.getpid(), [first])
    try:
        yield
    finally:
        keep_to(os.getpid(), mine)


async def _measured(it: Rounds) -> tuple[list[Round], list[str]]:
    args = it.args
    alone, beside = (_of_few, _of_all) if together(args) else (_alone, _beside_a_line)
    await alone(it)
    for place in range(ROUNDS):
        await (beside if place % 2 else alone)(it)
    return it.rounds[1:], [*dict.fromkeys(it.problems), *it.tally.wrong]


# ------------------------------------------------------------------------------------------- a crowd in line


async def _alone(it: Rounds) -> None:
    await _run(it, 0)


async def _beside_a_line(it: Rounds) -> None:
    args = it.args
    crowd = Crowd(it.host, it.port, args.users, args.sse_share, it.tally, args.seed)
    impatient = Impatient(crowd, args.think, it.tokens)
    try:
        await impatient.come()
        await it.until(lambda moment: moment.total(OPEN) >= _MOST * args.users, "the crowd to be in line")
        await _run(it, args.users)
    finally:
        await impatient.go()
    await it.until(lambda moment: not moment.total(OPEN), "answers to end whose clients have left")


async def _run(it: Rounds, crowd: int) -> None:
    """Ask, and watch from when the last one has begun."""
    runners = [Runner() for _ in range(it.args.few)]
    for place, runner in enumerate(runners):
        await _stream(it, chat(place, it.tokens, stream=True, priority=RUNNER), runner)
    for runner in runners:
        await runner.begun.wait()
    await it.watch(crowd, runners)


class Impatient:
    """A crowd in line: everybody asks, waits for a while (mean ``patience_s``), leaves, and comes back."""

    def __init__(self, crowd: Crowd, patience_s: float, tokens: int) -> None:
        self._crowd, self._patience_s, self._tokens = crowd, patience_s, tokens
        self._tasks: list[asyncio.Task[None]] = []

    async def come(self) -> None:
        """All of them, one after another."""
        for user in self._crowd.users:
            self._tasks.append(asyncio.ensure_future(self._wait(user)))
            await asyncio.sleep(1 / _JOINED_PER_S)

    async def go(self) -> None:
        """All of them, for good."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._crowd.disperse()

    async def _wait(self, user: User) -> None:
        crowd = self._crowd
        while True:
            if user.over_socket and user.socket is None:
                await user.open()
            ended = asyncio.Event()
            heard = Heard(crowd.tally, 0, perf_counter_ns())
            heard.done = lambda retry_s, ended=ended: ended.set()  # type: ignore[misc]
            user.ask(self._tokens, heard)
            with suppress(TimeoutError):
                patience_s = crowd.random.expovariate(1 / self._patience_s)
                await asyncio.wait_for(ended.wait(), max(patience_s, _LEAST_PATIENCE_S))
            if not ended.is_set():
                user.leave()
                heard.leave()


# ------------------------------------------------------------------------------------------- everybody runs


async def _of_few(it: Rounds) -> None:
    """A few clients ask for all answers, and get each of them whole."""
    counts = [min(CHOICES, it.args.few - first) for first in range(0, it.args.few, CHOICES)]
    runners = [Runner() for _ in counts]
    asking = [
        asyncio.ensure_future(_whole(it, chat(place, it.tokens, n=count), runner))
        for place, (count, runner) in enumerate(zip(counts, runners, strict=True))
    ]
    await _all_run(it, runners)
    await it.watch(0, runners)
    await asyncio.gather(*asking)


async def _of_all(it: Rounds) -> None:
    """Everybody asks for one answer and streams it; no step is launched before all have asked."""
    few, over_sse = it.args.few, round(it.args.few * it.args.sse_share)
    runners = [Runner() for _ in range(few)]
    await asyncio.to_thread(_tell, it, "/admin/pause")
    sockets = []
    for place, runner in enumerate(runners):
        if place < over_sse:
            await _stream(it, chat(place, it.tokens, stream=True), runner)
        else:
            sockets.append(await _socket(it))
            said = {"type": "response.create", "input": _said(place), "max_output_tokens": it.tokens}
            sockets[-1].ask(msgspec.json.encode({**said, "ignore_eos": True, "store": False}), runner)
        await asyncio.sleep(1 / _JOINED_PER_S)
    await it.until(lambda moment: moment.total(WAITING) == few, "everybody to be in line")
    await asyncio.to_thread(_tell, it, "/admin/resume")
    for runner in runners:
        await runner.begun.wait()
    await _all_run(it, runners)
    await it.watch(few, runners)
    for each in sockets:
        each.close()


async def _all_run(it: Rounds, runners: Sequence[Runner]) -> None:
    """Until everybody does, or somebody has ended already."""

    def true(moment: Moment) -> bool:
        return moment.total(RUNNING) == it.args.few or any(runner.ended.is_set() for runner in runners)

    await it.until(true, "everybody to run")


def _tell(it: Rounds, path: str) -> None:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(urllib.request.Request(f"{it.url}{path}", method="POST"), timeout=60):
        pass


# ------------------------------------------------------------------------------------------- clients


def _said(place: int) -> str:
    return f"{place:06}: {_SAID}"


def chat(place: int, tokens: int, **more: object) -> bytes:
    """A request for so many tokens; all prompts are of one length."""
    messages = [{"role": "user", "content": _said(place)}]
    return msgspec.json.encode({"messages": messages, "max_tokens": tokens, "ignore_eos": True, **more})


async def _stream(it: Rounds, body: bytes, runner: Runner) -> None:
    await asyncio.get_running_loop().create_connection(
        lambda: SseCall(f"{it.host}:{it.port}", body, runner), it.host, it.port
    )


async def _socket(it: Rounds) -> SocketCalls:
    """An open one."""
    opened: asyncio.Future[SocketCalls] = asyncio.get_running_loop().create_future()
    await asyncio.get_running_loop().create_connection(
        lambda: SocketCalls(f"{it.host}:{it.port}", opened.set_result, it.problems.append), it.host, it.port
    )
    return await opened


async def _whole(it: Rounds, body: bytes, runner: Runner) -> None:
    """Ask, and read the answer when it is whole."""
    reader, writer = await asyncio.open_connection(it.host, it.port)
    writer.write(post(f"{it.host}:{it.port}", body))
    answer = await reader.read(-1)
    if answer.startswith(b"HTTP/1.1 200 "):
        runner.over("length")
    else:
        runner.broken(answer[:300].decode("utf-8", "replace"))
    writer.close()
