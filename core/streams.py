"""What a client of the live engine holds: the tokens of one request as they come, and how it ended.

A stream is read in one of two ways.  A *listener* is called by the engine as it hands tokens out and needs no task: a
server with hundreds of streams cannot wake a task for each token of each of them.  Iterating is for everybody else,
and is a listener that wakes whoever waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import anyio
import structlog

from stepwell.core.errors import CapacityError, InvariantError, StepwellError, UserError
from stepwell.core.instructions import Finished, Rejected
from stepwell.core.sampling import TokenLogprob
from stepwell.core.types import RequestId

log = structlog.get_logger("stepwell.streams")


class Listener(Protocol):
    """Is called between two steps, so it must be quick and cannot wait.  It may call the engine back."""

    def heard(self, tokens: Sequence[int]) -> None:
        """These are new.  An exception cancels the request, and ``ended`` is called with it in ``stream.error``."""
        ...

    def ended(self) -> None:
        """Nothing more comes; ``stream.finished`` or ``stream.error`` says how it ended.  Called once."""
        ...


class Stream:
    """Iterate over it for lists of new token ids; more than one per list if the reader lags.

    Iteration ends when the request does; ``finished`` then says how.  It raises ``CapacityError`` if the request was
    refused or the engine was shut down, and ``InvariantError`` if the engine broke down.  Whoever stops reading early
    calls ``cancel``.
    """

    def __init__(self, request: RequestId, cancel: Callable[[RequestId], None]) -> None:
        self.request = request
        self.finished: Finished | None = None
        self.error: StepwellError | None = None
        """Why it could not be finished."""
        self.tokens: list[int] = []
        """All tokens so far."""
        self.logprobs: list[TokenLogprob] = []
        """Their log-probabilities, in the same order; empty unless they were asked for."""
        self.prompt_logprobs: list[TokenLogprob] = []
        """Of the prompt's tokens, from the second on; whole before the first token comes; empty unless asked for."""
        self._read = 0
        self._listener: Listener | None = None
        self._reader: _Reader | None = None
        self._cancel = cancel
        self._cancelled = False

    def cancel(self) -> None:
        """The client leaves; harmless if the request has ended."""
        if not (self._cancelled or self._over):
            self._cancelled = True
            self._cancel(self.request)

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` from now on; what came before, it hears at once.  A stream has one reader."""
        if self._listener is not None:
            raise InvariantError(f"the stream of request {self.request} has a reader already")
        self._listener = listener
        if self.tokens:
            self._tell(listener, self.tokens[:])
        if self._over:
            self._end()

    async def wait(self) -> Finished:
        """Read to the end and say how it ended."""
        async for _ in self:
            pass
        assert self.finished is not None
        return self.finished

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> list[int]:
        if self._reader is None:
            reader = _Reader()
            self.listen(reader)
            self._reader = reader
        while self._read == len(self.tokens):
            if self.error is not None:
                raise self.error
            if self.finished is not None:
                raise StopAsyncIteration
            await self._reader.news()
        news = self.tokens[self._read :]
        self._read = len(self.tokens)
        return news

    @property
    def _over(self) -> bool:
        return self.finished is not None or self.error is not None

    # ---- the engine's side

    def push(self, token: int, logprob: TokenLogprob | None = None) -> None:
        """One more token."""
        self.tokens.append(token)
        if logprob is not None:
            self.logprobs.append(logprob)
        if self._listener is not None and self.error is None:
            try:
                self._listener.heard((token,))
            except Exception as error:
                self.broke(error)

    def push_prompt(self, first: int, rows: Sequence[TokenLogprob]) -> None:
        """Rows of the prompt's tokens, from place ``first`` on.  Those that are known already were computed again."""
        known = 1 + len(self.prompt_logprobs)
        if first <= known:
            self.prompt_logprobs += rows[known - first :]

    def finish(self, finished: Finished) -> None:
        """Ended; tokens beyond those that count (a stop string) are taken back if nobody has them yet."""
        if self.error is not None:
            return
        told = self._read if self._listener is self._reader else len(self.tokens)
        del self.tokens[max(finished.tokens, told) :]
        del self.logprobs[len(self.tokens) :]
        self.finished = finished
        self._end()

    def reject(self, rejected: Rejected) -> None:
        """Refused on arrival."""
        at_most = f" (limit {rejected.limit})" if rejected.limit else ""
        self._fail(CapacityError(f"request refused: {rejected.code}{at_most}", code=rejected.code))

    def spoil(self, why: str) -> None:
        """Its grammar cannot be followed any further."""
        self.cancel()
        self._fail(UserError(f"the answer cannot be finished: {why}", field="structured_outputs"))

    def shut_down(self) -> None:
        """The engine was stopped before the request could end."""
        self._fail(CapacityError("the engine was shut down", code="not_serving"))

    def break_down(self, reason: str) -> None:
        """The engine stopped because of a bug."""
        self._fail(InvariantError(f"the engine stopped: {reason}"))

    def _fail(self, error: StepwellError) -> None:
        if self.error is None:
            self.error = error
            self._end()

    def _tell(self, listener: Listener, tokens: Sequence[int]) -> None:
        if self.error is not None:
            return
        try:
            listener.heard(tokens)
        except Exception as error:
            self.broke(error)

    def broke(self, error: Exception) -> None:
        """A reader's bug (a tokenizer, say) must not take other streams down: its own ends with an error."""
        log.error("a stream's reader failed", request=self.request, exc_info=error)
        self.cancel()
        self._fail(InvariantError(f"the stream's reader: {type(error).__name__}: {error}"))

    def _end(self) -> None:
        if self._listener is None:
            return
        listener, self._listener = self._listener, _over  # which knows the stream
        try:
            listener.ended()
        except Exception as error:
            log.error("a stream's reader failed", request=self.request, exc_info=error)


class _Nobody:
    """The listener of a stream that is over."""

    def heard(self, tokens: Sequence[int]) -> None:
        """Nothing comes any more."""

    def ended(self) -> None:
        """Told already."""


_over = _Nobody()


class _Reader:
    """The listener of those who iterate: it wakes whoever waits."""

    def __init__(self) -> None:
        self._news = anyio.Event()

    def heard(self, tokens: Sequence[int]) -> None:
        self._news.set()

    def ended(self) -> None:
        self._news.set()

    async def news(self) -> None:
        """Wait for the next call; only for somebody who has seen all there is."""
        if self._news.is_set():
            self._news = anyio.Event()
        await self._news.wait()
