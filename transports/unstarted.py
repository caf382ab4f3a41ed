"""What waits for its turn takes memory: how much, of one connection and of all."""

from __future__ import annotations

from collections.abc import Callable

from stepwell.core.errors import CapacityError


class Unstarted:
    """Bytes of requests that were taken and have not begun; those of ``above`` include them.

    A single one is always taken: how large it may be is said elsewhere.
    """

    def __init__(
        self,
        most_mib: float,
        above: Unstarted | None = None,
        emptied: Callable[[], None] = lambda: None,
        what: str = "requests that wait for their turn",
    ) -> None:
        self.size = 0
        self._what = what
        self._most = int(most_mib * (1 << 20))
        self._above = above
        self._emptied = emptied

    def take(self, size: int) -> None:
        """Raises ``CapacityError`` if there is no room."""
        if self.size and self.size + size > self._most:
            raise CapacityError(f"{self._what} take {self.size:,} bytes", code="too_many_bytes")
        if self._above is not None:
            self._above.take(size)
        self.size += size

    def give(self, size: int) -> None:
        """It began, or never will."""
        if self._above is not None:
            self._above.give(size)
        self.size -= size
        if not self.size:
            self._emptied()
