"""A crowd of users of one server, on one event loop: who asks when, and who leaves.

Half of them stream over server-sent events, each request on a connection of its own; half keep a WebSocket open.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from time import perf_counter_ns

import msgspec

from stepwell.cli.streams_tally import Heard, Tally
from stepwell.cli.streams_wire import SocketCalls, SseCall
from stepwell.core.errors import UserError
from stepwell.core.types import NS_PER_S

OPENED_PER_S = 400
"""WebSockets that are opened before anybody asks."""
PATIENCE_S = 60.0
"""Answers that make no progress for so long are given up."""
_LOOK_S = 0.01
_WORDS = "say which of your tokens each one is from first to last and leave none of them out please".split()


class User:
    """One of them.  Whoever has a ``socket`` uses it."""

    def __init__(self, crowd: Crowd, index: int, over_socket: bool) -> None:
        self.index = index
        self.over_socket = over_socket
        self.socket: SocketCalls | None = None
        self.call: SseCall | None = None
        self._crowd = crowd

    def ask(self, tokens: int, heard: Heard) -> None:
        """Send a request now; ``heard`` hears what comes of it."""
        body = self._crowd.body(self, tokens)
        if not self.over_socket:
            self._crowd.start(self._call(body, heard))
        elif self.socket is None:
            heard.broken("its socket could not be opened, or ended")
        else:
            self.socket.ask(body, heard)

    async def _call(self, body: bytes, heard: Heard) -> None:
        crowd = self._crowd
        try:
            _, self.call = await crowd.loop.create_connection(
                lambda: SseCall(f"{crowd.host}:{crowd.port}", body, heard), crowd.host, crowd.port
            )
        except OSError as error:
            heard.broken(f"cannot connect: {error.strerror or error}")

    async def open(self) -> None:
        """Its WebSocket, if it uses one."""
        crowd = self._crowd
        opened: asyncio.Future[SocketCalls | str] = crowd.loop.create_future()

        def told(found: SocketCalls | str) -> None:
            if not opened.done():
                opened.set_result(found)
            elif isinstance(found, str):
                self.socket = None
                crowd.tally.problems[found] += 1

        def make() -> SocketCalls:
            return SocketCalls(f"{crowd.host}:{crowd.port}", told, told)

        try:
            await crowd.loop.create_connection(make, crowd.host, crowd.port)
        except OSError as error:
            told(f"cannot connect: {error.strerror or error}")
        found = await opened
        if isinstance(found, str):
            crowd.tally.problems[found] += 1
        else:
            self.socket = found

    def leave(self) -> None:
        """Close whatever is open, at once."""
        for each in (self.call, self.socket):
            if each is not None:
                each.close()
        self.call = self.socket = None


class Crowd:
    """Made inside the loop that it lives on."""

    def __init__(self, host: str, port: int, users: int, sse_share: float, tally: Tally, seed: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.host, self.port, self.tally = host, port, tally
        self.random = Random(seed)
        over_sse = round(users * sse_share)
        self.users = [User(self, index, index >= over_sse) for index in range(users)]
        self.random.shuffle(self.users)
        self.sockets = users - over_sse
        self._asked = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Awaitable[None]) -> None:
        """As a task that is not lost."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def body(self, user: User, tokens: int) -> bytes:
        """A request for so many tokens; no two have the same prompt."""
        self._asked += 1
        words = " ".join(self.random.sample(_WORDS, 12))
        said = f"{self._asked}: {words}"
        if user.over_socket:
            asked = {
                "type": "response.create",
                "input": said,
                "max_output_tokens": tokens,
                "ignore_eos": True,
                "store": False,
            }
        else:
            messages = [{"role": "user", "content": said}]
            asked = {"messages": messages, "max_tokens": tokens, "ignore_eos": True, "stream": True}
        return msgspec.json.encode(asked)

    async def open(self) -> None:
        """The sockets of all who use one."""
        began_s = self.loop.time()
        using = [user for user in self.users if user.over_socket]
        tasks = []
        for place, user in enumerate(using):
            await asyncio.sleep(began_s + place / OPENED_PER_S - self.loop.time())
            tasks.append(asyncio.ensure_future(user.open()))
        await asyncio.gather(*tasks)

    async def all_ended(self) -> None:
        """Until no answer is in progress; those that do not go on are given up, and that is a problem."""
        tally, seen, quiet_since_s = self.tally, -1, self.loop.time()
        while tally.open:
            await asyncio.sleep(0.05)
            now = tally.answered + len(tally.ttfts_us) + tally.pieces + sum(tally.refused.values())
            if now != seen:
                seen, quiet_since_s = now, self.loop.time()
            elif self.loop.time() - quiet_since_s > PATIENCE_S:
                tally.problems["answers that did not end"] += tally.open
                return

    def disperse(self) -> None:
        """Everybody leaves."""
        for user in self.users:
            user.leave()


async def spread(crowd: Crowd, over_s: float, tokens: Callable[[float], int]) -> None:
    """Everybody asks once, evenly spread over ``over_s``; ``tokens`` by the time (s) at which one asks."""
    began_s, began_ns = crowd.loop.time(), perf_counter_ns()
    for place, user in enumerate(crowd.users):
        at_s = over_s * place / len(crowd.users)
        early_s = began_s + at_s - crowd.loop.time()
        if early_s > 0:
            await asyncio.sleep(early_s)
        elif not place % 16:
            await asyncio.sleep(0)
        wanted = tokens(at_s)
        user.ask(wanted, Heard(crowd.tally, wanted, began_ns + int(at_s * NS_PER_S)))


class Thinking:
    """A closed loop: everybody thinks, asks, reads, and thinks again; ``stop`` lets nobody ask any more."""

    def __init__(self, crowd: Crowd, think_s: float, tokens: int) -> None:
        self._crowd, self._think_s, self._tokens = crowd, think_s, tokens
        self._over = False
        for user in crowd.users:
            self._think(user, 0.0)

    def stop(self) -> None:
        """What is being answered goes on."""
        self._over = True

    def _think(self, user: User, at_least_s: float) -> None:
        """Times to think are exponential, so that a crowd begins as it goes on."""
        if self._over:
            return
        delay_s = max(self._crowd.random.expovariate(1 / self._think_s), at_least_s)
        due_ns = perf_counter_ns() + int(delay_s * NS_PER_S)
        self._crowd.loop.call_later(delay_s, self._ask, user, due_ns)

    def _ask(self, user: User, due_ns: int) -> None:
        if self._over:
            return
        heard = Heard(self._crowd.tally, self._tokens, due_ns)
        heard.done = lambda retry_s: self._think(user, retry_s)
        user.ask(self._tokens, heard)


class ClientLag:
    """How late this loop is, in µs: a load generator that is late itself measures itself."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.us = array("L")
        self._loop = loop
        self._due_s = loop.time() + _LOOK_S
        self._timer = loop.call_at(self._due_s, self._look)

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        now_s = self._loop.time()
        while self._due_s <= now_s:
            self.us.append(int((now_s - self._due_s) * 1e6))
            self._due_s += _LOOK_S
        self._timer = self._loop.call_at(self._due_s, self._look)


def check_share(sse_share: float) -> None:
    """Raises ``UserError`` for what is no share."""
    if not 0 <= sse_share <= 1:
        raise UserError(f"must be between 0 (all WebSockets) and 1 (all SSE), not {sse_share}", field="sse-share")


def steps_until(end_s: float, over_s: float, users: int, base_s: float, each_s: float) -> Sequence[float]:
    """When a device's steps end, as planned: it takes ``base_s`` and ``each_s`` for each of the users that have asked
    by then, all of them after ``over_s``."""
    ends, now_s = [], 0.0
    while now_s < end_s:
        now_s += base_s + each_s * users * min(now_s / over_s, 1.0)
        ends.append(now_s)
    return ends
