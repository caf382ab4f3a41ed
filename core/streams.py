"""What a client of the live engine holds: the tokens of one request as they come, and how it ended."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import anyio

from stepwell.core.errors import CapacityError, InvariantError
from stepwell.core.instructions import Finished, Rejected
from stepwell.core.types import RequestId


class Stream:
    """Iterate over it for lists of new token ids; more than one per list if the reader lags.

    Iteration ends when the request does; ``finished`` then says how.  It raises ``CapacityError`` if the request was
    refused and ``InvariantError`` if the engine broke down.
    """

    def __init__(self, request: RequestId, cancel: Callable[[RequestId], None]) -> None:
        self.request = request
        self.finished: Finished | None = None
        self.tokens: list[int] = []
        """All tokens so far."""
        self._sent = 0
        self._error: Exception | None = None
        self._news = anyio.Event()
        self._cancel = cancel

    def cancel(self) -> None:
        """The client leaves; harmless if the request has ended."""
        if not self._ended():
            self._cancel(self.request)

    async def wait(self) -> Finished:
        """Read to the end and say how it ended."""
        async for _ in self:
            pass
        assert self.finished is not None
        return self.finished

    async def __aiter__(self) -> AsyncIterator[list[int]]:
        while True:
            if self._sent < len(self.tokens):
                news = self.tokens[self._sent :]
                self._sent = len(self.tokens)
                yield news
            elif self._error is not None:
                raise self._error
            elif self.finished is not None:
                return
            else:
                self._news = anyio.Event()
                await self._news.wait()

    def _ended(self) -> bool:
        return self.finished is not None or self._error is not None

    # ---- the engine's side

    def push(self, token: int) -> None:
        self.tokens.append(token)
        self._news.set()

    def finish(self, finished: Finished) -> None:
        """Ended; tokens beyond those that count (a stop string) are taken back if they were not read yet."""
        del self.tokens[max(finished.tokens, self._sent) :]
        self.finished = finished
        self._news.set()

    def reject(self, rejected: Rejected) -> None:
        at_most = f" (limit {rejected.limit})" if rejected.limit else ""
        self.fail(CapacityError(f"request refused: {rejected.code}{at_most}", code=rejected.code))

    def break_down(self, reason: str) -> None:
        self.fail(InvariantError(f"the engine stopped: {reason}"))

    def fail(self, error: Exception) -> None:
        self._error = error
        self._news.set()
