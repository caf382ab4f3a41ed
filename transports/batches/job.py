"""One batch while it is run: what is done of it, and how it is to end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import anyio

from stepwell.transports.store.batches import BatchRow

Ending = Literal["", "expired", "cancelled"]


class Job:
    """``ending``: why it does not go on; empty while it does."""

    def __init__(self, row: BatchRow) -> None:
        self.row = row
        self.ending: Ending = "cancelled" if row.status == "cancelling" else ""
        self.interrupted = False
        """A line could not be run to its end in this life of the server."""
        self.running = 0
        """Lines that have begun and have no result."""
        self.left = 0
        """Lines that have no result."""
        self._done = bytearray()
        self._scope = anyio.CancelScope()
        self._refused = 0
        self._clear = anyio.Event()

    def end(self, how: Ending) -> None:
        """What runs of it is not wanted any more.  The first to say so is right."""
        if not self.ending:
            self.ending = how
            self._scope.cancel()

    @contextmanager
    def unless_ended(self) -> Iterator[None]:
        """What is inside is given up when it ends early."""
        with anyio.CancelScope() as self._scope:
            if self.ending:
                self._scope.cancel()
            yield

    def recorded(self, places: Sequence[int]) -> None:
        """The lines that have a result already."""
        self._done = bytearray(self.row.total)
        for place in places:
            self._done[place] = 1
        self.left = self.row.total - len(places)

    def is_done(self, place: int) -> bool:
        """Whether that line was among them."""
        return bool(self._done[place])

    @contextmanager
    def refusal(self) -> Iterator[None]:
        """A line that was refused waits inside; meanwhile no other of the batch begins."""
        self._refused += 1
        try:
            yield
        finally:
            self._refused -= 1
            if not self._refused:
                self._clear.set()
                self._clear = anyio.Event()

    async def clear(self) -> None:
        """Wait until none was refused."""
        while self._refused:
            await self._clear.wait()
