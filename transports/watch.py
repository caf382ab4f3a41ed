"""Time, for connections: who has been silent too long, and who takes nothing.

One task looks at every connection a few times a second.  A timer a message would cost more than the message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio

from stepwell.core.types import NS_PER_S


class Watch:
    """Of one connection.  ``drop`` is called once if a send takes too long, ``silent`` after a long silence."""

    def __init__(
        self,
        now_ns: Callable[[], int],
        send_timeout_s: float,
        drop: Callable[[], None],
        *,
        ping_s: float = 0.0,
        silent: Callable[[], None] | None = None,
    ) -> None:
        self._now_ns = now_ns
        self._timeout_ns = int(send_timeout_s * NS_PER_S)
        self._drop: Callable[[], None] | None = drop
        self._ping_ns = int(ping_s * NS_PER_S)
        self._silent = silent
        self._sending = self._wrote = False
        self._since_ns = now_ns()
        """When the present send began, or the last one ended."""

    def sending(self) -> None:
        """A send begins."""
        self._sending = True
        self._since_ns = self._now_ns()

    def sent(self) -> None:
        """It ended."""
        self._sending = False
        self._since_ns = self._now_ns()

    def wrote(self) -> None:
        """Something was sent at once; seen at the next look."""
        self._wrote = True

    def look(self, now_ns: int) -> None:
        """Called now and then."""
        if self._wrote and not self._sending:
            self._since_ns = now_ns
        self._wrote = False
        waited_ns = now_ns - self._since_ns
        if self._sending:
            if waited_ns > self._timeout_ns and self._drop is not None:
                drop, self._drop = self._drop, None
                drop()
        elif self._silent is not None and waited_ns >= self._ping_ns:
            self._since_ns = now_ns
            self._silent()


class Watches:
    """All that are looked at."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._watches: dict[Watch, None] = {}

    @contextmanager
    def watching(self, watch: Watch) -> Iterator[Watch]:
        """Look at a connection now and then, inside."""
        self._watches[watch] = None
        try:
            yield watch
        finally:
            del self._watches[watch]

    async def run(self, period_s: float) -> None:
        """Until cancelled."""
        while True:
            await anyio.sleep(period_s)
            now_ns = self._now_ns()
            for watch in list(self._watches):
                watch.look(now_ns)
