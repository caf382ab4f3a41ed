"""What a client of the live engine holds: the tokens of one request as they come, and how it ended."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from stepwell.core.errors import CapacityError, InvariantError, StepwellError
from stepwell.core.instructions import Finished, Rejected
from stepwell.core.types import RequestId


class Stream:
    """Iterate over it for lists of new token ids; more than one per list if the reader lags.

    Iteration ends when the request does; ``finished`` then says how.  It raises ``CapacityError`` if the request was
    refused or the engine was shut down, and ``InvariantError`` if the engine broke down.  Whoever stops reading early
    calls ``cancel``.
    """

    def __init__(self, request: RequestId, cancel: Callable[[RequestId], None]) -> None:
        self.request = request
        self.finished: Finished | None = None
        self.tokens: list[int] = []
        """All tokens so far."""
        self._read = 0
        self._error: StepwellError | None = None
        self._news = anyio.Event()
        self._cancel = cancel
        self._cancelled = False

    def cancel(self) -> None:
        """The client leaves; harmless if the request has ended."""
        if not (self._cancelled or self._ended()):
            self._cancelled = True
            self._cancel(self.request)

    async def wait(self) -> Finished:
        """Read to the end and say how it ended."""
        async for _ in self:
            pass
        assert self.finished is not None
        return self.finished

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> list[int]:
        while self._read == len(self.tokens):
            if self._error is not None:
                raise self._error
            if self.finished is not None:
                raise StopAsyncIteration
            if self._news.is_set():
                self._news = anyio.Event()
            await self._news.wait()
        news = self.tokens[self._read :]
        self._read = len(self.tokens)
        return news

    def _ended(self) -> bool:
        return self.finished is not None or self._error is not None

    # ---- the engine's side

    def push(self, token: int) -> None:
        """One more token."""
        self.tokens.append(token)
        self._news.set()

    def finish(self, finished: Finished) -> None:
        """Ended; tokens beyond those that count (a stop string) are taken back if they were not read yet."""
        del self.tokens[max(finished.tokens, self._read) :]
        self.finished = finished
        self._news.set()

    def reject(self, rejected: Rejected) -> None:
        """Refused on arrival."""
        at_most = f" (limit {rejected.limit})" if rejected.limit else ""
        self._fail(CapacityError(f"request refused: {rejected.code}{at_most}", code=rejected.code))

    def shut_down(self) -> None:
        """The engine was stopped before the request could end."""
        self._fail(CapacityError("the engine was shut down", code="not_serving"))

    def break_down(self, reason: str) -> None:
        """The engine stopped because of a bug."""
        self._fail(InvariantError(f"the engine stopped: {reason}"))

    def _fail(self, error: StepwellError) -> None:
        self._error = error
        self._news.set()
