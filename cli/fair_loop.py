"""An event loop that takes few connections' news a turn: a crowd that comes, speaks or leaves at once holds up nobody.

asyncio's own looks at everything that is ready before anything else has a turn; with thousands of connections that
all close in one instant, that is a second in which no step ends and no token goes out.  Linux only; elsewhere the loop
is asyncio's.
"""

from __future__ import annotations

import asyncio
import selectors
import socket
from collections.abc import Mapping
from typing import Any

AT_ONCE = 8
"""Connections whose news are taken in one turn, at most."""

Ready = list[tuple[selectors.SelectorKey, int]]


class FairSelector(selectors.BaseSelector):
    """Connections of the network are looked at a few at a time, in turn; what is this machine's own, always.

    The kernel keeps those that are ready in a line, so that nobody is passed over.
    """

    def __init__(self) -> None:
        self._own, self._crowd = selectors.EpollSelector(), selectors.EpollSelector()
        self._own.register(self._crowd.fileno(), selectors.EVENT_READ)
        self._where: dict[int, selectors.EpollSelector] = {}
        self._keys: dict[int, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        where = self._crowd if _of_the_network(fileobj) else self._own
        key = where.register(fileobj, events, data)
        self._where[key.fd], self._keys[key.fd] = where, key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        key = self._of(fileobj).unregister(fileobj)
        del self._where[key.fd], self._keys[key.fd]
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = self._of(fileobj).modify(fileobj, events, data)
        self._keys[key.fd] = key
        return key

    def select(self, timeout: float | None = None) -> Ready:
        crowd = self._crowd.fileno()
        ready = self._own.select(timeout)
        own = [each for each in ready if each[0].fd != crowd]
        if len(own) == len(ready):
            return own
        for fd, event in self._crowd._selector.poll(0, AT_ONCE):  # type: ignore[attr-defined]
            events = (selectors.EVENT_WRITE if event & ~_READ else 0) | (selectors.EVENT_READ if event & ~_WRITE else 0)
            key = self._keys[fd]
            own.append((key, events & key.events))
        return own

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._of(fileobj).get_key(fileobj)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def close(self) -> None:
        self._own.close()
        self._crowd.close()
        self._where.clear()
        self._keys.clear()

    def _of(self, fileobj: Any) -> selectors.EpollSelector:
        """``KeyError`` if it is not registered, as asyncio expects of a selector."""
        return self._where[fileobj if isinstance(fileobj, int) else fileobj.fileno()]


def fair_loop() -> asyncio.AbstractEventLoop:
    """For ``anyio.run``."""
    if not hasattr(selectors, "EpollSelector"):
        return asyncio.new_event_loop()
    return asyncio.SelectorEventLoop(FairSelector())


def _of_the_network(fileobj: Any) -> bool:
    fd = fileobj if isinstance(fileobj, int) else fileobj.fileno()
    try:
        seen = socket.socket(fileno=fd)
    except OSError:  # no socket
        return False
    try:
        return seen.family in (socket.AF_INET, socket.AF_INET6)
    finally:
        seen.detach()


_READ, _WRITE = 1, 4
"""EPOLLIN and EPOLLOUT: anything else is news for whoever reads and whoever writes."""
