"""Answers in the making: one engine request and one text pipeline per choice, and whoever waits for news of them.

Each choice is read by a task of its own, at the engine's pace and not the client's: tokens become text at once, stop
strings are found at once, and text that the client has not taken yet grows together into one piece.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import anyio

from stepwell.core.errors import CapacityError, InvariantError, StepwellError
from stepwell.core.sampling import TokenLogprob
from stepwell.core.streams import Stream
from stepwell.core.text import TextPipeline


class Choice:
    """One answer.  ``text`` is all of it so far; what is new comes from ``take``."""

    def __init__(self, index: int, prompt: Sequence[int], stream: Stream, pipeline: TextPipeline) -> None:
        self.index = index
        self.prompt = prompt
        self.stream = stream
        self.reason = ""
        """Why it ended: ``stop``, ``length`` or ``cancelled``; empty while it runs, and if it failed."""
        self.error: StepwellError | None = None
        self.accepted = False
        """The scheduler has taken it into the line, or refused it."""
        self.admitted = False
        self.cached = 0
        """Prompt tokens found in the KV cache."""
        self.preemptions = 0
        self.logprobs: list[TokenLogprob] = []
        self._text: list[str] = []
        self._fresh: list[str] = []
        self.untaken = 0
        """Letters that nobody took yet."""
        self._taken_tokens = 0
        self._pipeline = pipeline

    @property
    def ended(self) -> bool:
        return bool(self.reason) or self.error is not None

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def tokens(self) -> int:
        """Of the answer: those before a stop string, or all."""
        if self._pipeline.stop_at is not None:
            return self._pipeline.stop_at
        finished = self.stream.finished
        return len(self.stream.tokens) if finished is None else finished.tokens

    def take(self) -> tuple[str, int, int]:
        """The text that is new, and the tokens (from, to) that are."""
        text = "".join(self._fresh)
        self._fresh.clear()
        self.untaken = 0
        start, self._taken_tokens = self._taken_tokens, max(self.tokens, self._taken_tokens)
        return text, start, self._taken_tokens

    async def read(self, stop: Callable[[int, int], None], news: Callable[[], None]) -> None:
        """Until it ends.  ``stop`` tells the engine of a stop string; ``news`` is called when anything changes."""
        try:
            async for tokens in self.stream:
                if self._pipeline.stop_at is None:
                    self._feed(tokens, stop)
                    news()
            self._end()
        except StepwellError as error:
            self.error = error
        except Exception as error:
            # A tokenizer's bug must not take the other streams down; the engine is told to forget the request.
            self.stream.cancel()
            self.error = InvariantError(f"text pipeline: {type(error).__name__}: {error}")
        finally:
            news()

    def _feed(self, tokens: Sequence[int], stop: Callable[[int, int], None]) -> None:
        self._add(self._pipeline.feed(tokens))
        if self._pipeline.stop_at is not None:
            stop(self.stream.request, self._pipeline.stop_at)

    def _end(self) -> None:
        finished = self.stream.finished
        assert finished is not None
        if self._pipeline.stop_at is not None:
            self.reason = "stop"
        elif finished.reason in ("stop", "length", "cancelled"):
            self._add(self._pipeline.finish())
            self.reason = finished.reason
        elif finished.reason == "error":
            self.error = InvariantError("the step that this request was in failed too often")
        else:
            code = "queue_timeout" if finished.reason == "expired" else "shed"
            self.error = CapacityError(f"the request waited and was let go: {finished.reason}", code=code)

    def _add(self, text: str) -> None:
        if text:
            self._text.append(text)
            self._fresh.append(text)
            self.untaken += len(text)


class Generation:
    """The choices of one client request, in order.  Whoever made it calls ``close`` in the end, however it ends."""

    def __init__(self, choices: Sequence[Choice], on_close: Callable[[Generation], None]) -> None:
        self.choices = choices
        self.most_untaken = 0
        """Letters that may wait to be taken; with more, ``overflow`` is called."""
        self.overflow: Callable[[], None] | None = None
        self._news = anyio.Event()
        self._on_close: Callable[[Generation], None] | None = on_close

    def tell(self) -> None:
        """Something changed."""
        self._news.set()
        if self.overflow is not None and self.untaken > self.most_untaken:
            overflow, self.overflow = self.overflow, None
            overflow()

    async def news(self) -> None:
        """Wait until something changed since the last call (or has already)."""
        if not self._news.is_set():
            await self._news.wait()
        self._news = anyio.Event()

    @property
    def ended(self) -> bool:
        return all(choice.ended for choice in self.choices)

    @property
    def error(self) -> StepwellError | None:
        """The first failure among the choices."""
        for choice in self.choices:
            if choice.error is not None:
                return choice.error
        return None

    @property
    def untaken(self) -> int:
        return sum(choice.untaken for choice in self.choices)

    @property
    def usage(self) -> tuple[int, int, int]:
        """Prompt tokens (each prompt once), tokens of all answers, and prompt tokens that the cache had."""
        prompts = {id(choice.prompt): choice for choice in reversed(self.choices)}
        return (
            sum(len(choice.prompt) for choice in prompts.values()),
            sum(choice.tokens for choice in self.choices),
            sum(choice.cached for choice in prompts.values()),
        )

    async def accepted(self) -> None:
        """Wait until the scheduler has judged every choice; raises its refusal."""
        while self.error is None and not all(choice.accepted or choice.ended for choice in self.choices):
            await self.news()
        if self.error is not None:
            raise self.error

    async def finished(self) -> None:
        """Wait until every choice has ended; raises the first failure."""
        while self.error is None and not self.ended:
            await self.news()
        if self.error is not None:
            raise self.error

    def cancel(self) -> None:
        """Whatever still runs is not wanted any more."""
        for choice in self.choices:
            choice.stream.cancel()

    def close(self) -> None:
        """Cancel what still runs and give the place back; harmless the second time."""
        self.cancel()
        if self._on_close is not None:
            closed, self._on_close = self._on_close, None
            closed(self)
