"""News of a crowd are taken a few at a time, nobody is passed over, and what is this machine's own comes first."""

from __future__ import annotations

import asyncio
import selectors
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise

import pytest

from stepwell.cli.fair_loop import AT_ONCE, FairSelector, fair_loop

if not hasattr(selectors, "EpollSelector"):
    pytest.skip("needs epoll", allow_module_level=True)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def connections(stack: ExitStack, count: int) -> list[tuple[socket.socket, socket.socket]]:
    """Of the loopback, both ends of each."""
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=count))
    made = []
    for _ in range(count):
        client = stack.enter_context(socket.create_connection(listener.getsockname()))
        made.append((client, stack.enter_context(listener.accept()[0])))
    return made


def test_few_a_turn_and_everybody_in_the_end(stack: ExitStack) -> None:
    selector = stack.enter_context(FairSelector())
    pairs = connections(stack, 5 * AT_ONCE)
    for client, server in pairs:
        selector.register(server.fileno(), selectors.EVENT_READ, server)
        client.send(b"x")
    here, there = socket.socketpair()
    stack.enter_context(here)
    stack.enter_context(there)
    selector.register(here.fileno(), selectors.EVENT_READ, here)
    there.send(b"x")
    seen: set[int] = set()
    for _ in range(5):
        ready = selector.select(1)
        assert here.fileno() in [key.fd for key, _ in ready], "its own, however many others are ready"
        crowd = [key for key, events in ready if key.fd != here.fileno()]
        assert len(crowd) == AT_ONCE
        assert all(events == selectors.EVENT_READ for _, events in ready)
        for key in crowd:
            assert key.data.recv(1) == b"x"
            seen.add(key.fd)
    assert seen == {server.fileno() for _, server in pairs}
    here.recv(1)
    assert selector.select(0) == []


def test_what_is_registered_can_be_changed_and_forgotten(stack: ExitStack) -> None:
    selector = stack.enter_context(FairSelector())
    ((_, server),) = connections(stack, 1)
    fd = server.fileno()
    selector.register(fd, selectors.EVENT_READ, "one")
    assert selector.select(0) == []
    selector.modify(fd, selectors.EVENT_READ | selectors.EVENT_WRITE, "two")
    ((key, events),) = selector.select(1)
    assert (key.fd, key.data, events) == (fd, "two", selectors.EVENT_WRITE)
    assert selector.get_key(fd) == key == selector.get_map()[fd]
    assert selector.unregister(fd) == key
    with pytest.raises(KeyError):
        selector.get_key(fd)
    assert selector.select(0) == []
    selector.register(fd, selectors.EVENT_WRITE, "again")
    assert [each.data for each, _ in selector.select(1)] == ["again"]


def test_a_crowd_that_leaves_at_once_lets_others_in_between(stack: ExitStack) -> None:
    """Every one is heard of, and no turn of the loop hears of more than a few."""
    left: list[int] = []
    turns: list[int] = []

    class Ear(asyncio.Protocol):
        def connection_lost(self, exc: Exception | None) -> None:
            left.append(1)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Ear, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        clients = []
        for _ in range(100):
            reader, writer = await asyncio.open_connection(*address)
            clients.append((reader, writer))
        for _, writer in clients:
            writer.transport.abort()
        while len(left) < 100:
            turns.append(len(left))
            await asyncio.sleep(0)
        server.close()

    with asyncio.Runner(loop_factory=fair_loop) as runner:
        runner.run(asyncio.wait_for(main(), 30))
    assert max(after - before for before, after in pairwise(turns)) <= 2 * AT_ONCE
