"""Answers in the making: one engine request and one text pipeline per choice, and whoever waits for news of them.

Each choice listens to its stream, at the engine's pace and not the client's.  Where their text can end the answer, by a
stop string or a call, tokens become text as they are handed out; otherwise when somebody takes it, all that are new at
once.  What the client has not taken yet grows together into one piece.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stepwell.core.errors import CapacityError, StepwellError
from stepwell.core.sampling import TokenLogprob
from stepwell.core.streams import Stream
from stepwell.core.text import TextPipeline
from stepwell.transports.bell import Bell
from stepwell.transports.errors import RequestError
from stepwell.transports.parsing.reading import Reading, ReadPipeline
from stepwell.transports.times import Times

MAX_NAMED = 64
"""Numbers of requests that are told to a client: they go into a header."""
LATE = 32
"""Tokens that wait to be made text, at most: so many at once cost little more than one."""


class Choice:
    """One answer, and its stream's listener.  ``text`` is all of it so far; what is new comes from ``take``."""

    def __init__(
        self,
        index: int,
        prompt: Sequence[int],
        stream: Stream,
        pipeline: TextPipeline,
        *,
        silent: bool = False,
        reading: Reading | None = None,
    ) -> None:
        """``silent``: no token is wanted, only what is known of the prompt.  ``reading``: who reads the text."""
        self.index = index
        self.silent = silent
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
        self.lags = 0
        """How many tokens were taken together with one before them: the client was behind."""
        self.paused = False
        """Preempted, and not on the device again; or held by an operator."""
        self.paused_for = ""
        """The policy's word for why it was preempted last, or ``operator``."""
        self._held = False
        self.untaken = 0
        """Letters that nobody took yet; of at most ``LATE`` tokens it is not known how many they are."""
        self._text: list[str] = []
        self._taken = 0
        """Pieces of the text that were."""
        self._taken_tokens = 0
        self.reading = reading
        """What its text is, if that is not just content."""
        self._pipeline = pipeline if reading is None else ReadPipeline(pipeline, reading)
        self._at_once = reading is not None or pipeline.looks
        self._heard = self._read = 0
        """Tokens that are the answer's so far, and those that became text."""
        self._stopped = False
        self._stop: Callable[[int, int], None]
        self._news: Callable[[], None]
        self._over: Callable[[], None]

    @property
    def over(self) -> bool:
        return bool(self.reason) or self.error is not None

    @property
    def text(self) -> str:
        self._read_on()
        return "".join(self._text)

    @property
    def logprobs(self) -> list[TokenLogprob]:
        """Of all tokens so far, in order; empty unless they were asked for."""
        return self.stream.logprobs

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended it."""
        return self._pipeline.stopped_by

    @property
    def started(self) -> bool:
        """Somebody took some of it."""
        return self._taken_tokens > 0

    @property
    def untaken_tokens(self) -> int:
        """Those that nobody took yet."""
        return max(self.tokens - self._taken_tokens, 0)

    @property
    def tokens(self) -> int:
        """Of the answer: those before a stop string, or all."""
        if self.silent:
            return 0
        if self._pipeline.stop_at is not None:
            return self._pipeline.stop_at
        finished = self.stream.finished
        return len(self.stream.tokens) if finished is None else finished.tokens

    def take(self) -> tuple[str, int, int]:
        """The text that is new, and the tokens (from, to) that are."""
        self._read_on()
        pieces = self._text[self._taken :]
        self._taken += len(pieces)
        self.untaken = 0
        start, tokens = self._taken_tokens, self.tokens
        if tokens > start:
            self._taken_tokens = tokens
            if start:
                self.lags += tokens - start - 1
        return pieces[0] if len(pieces) == 1 else "".join(pieces), start, self._taken_tokens

    def hold(self, on: bool) -> None:
        """An operator holds what is on the device, or lets it go on."""
        if on and self.admitted and not self.paused:
            self.paused, self.paused_for, self._held = True, "operator", True
        elif not on and self._held:
            self.paused = self._held = False

    def listen(self, stop: Callable[[int, int], None], news: Callable[[], None], over: Callable[[], None]) -> None:
        """Begin.  ``stop`` tells the engine of a stop string; ``news`` is called for text, ``over`` for the end."""
        self._stop, self._news, self._over = stop, news, over
        self.stream.listen(self)

    def heard(self, tokens: Sequence[int]) -> None:
        """The stream has more.  What comes after a stop string is not the answer's."""
        if self._stopped or self.silent or self.reason or self.error is not None:
            return
        self._heard += len(tokens)
        if self._at_once or self._heard - self._read > LATE:
            self._read_on()
        self._news()

    def _read_on(self) -> None:
        """Make text of the tokens that are new.  A tokenizer's fault ends this answer, and no other."""
        start, self._read = self._read, self._heard
        if start == self._heard:
            return
        try:
            text = self._pipeline.feed(self.stream.tokens[start : self._read])
        except Exception as error:
            self.stream.broke(error)
            return
        if text:
            self._text.append(text)
            self.untaken += len(text)
        if self._pipeline.stop_at is not None and not self._stopped:
            self._stopped = True
            self._stop(self.stream.request, self._pipeline.stop_at)

    def ended(self) -> None:
        """The stream is over."""
        if self.over:
            return
        self._read_on()
        if self.stream.error is not None:
            self.error = self.stream.error
        else:
            self._end()
        self._over()

    def fail(self, error: StepwellError) -> None:
        """It ends here, with ``error``; the engine is told."""
        if not self.over:
            self.error = error
            self.stream.cancel()
            self._over()

    def release(self) -> None:
        """Nobody listens any more."""
        self._news = self._over = _nothing

    def _end(self) -> None:
        finished = self.stream.finished
        assert finished is not None
        if self._pipeline.stop_at is not None:
            self.reason = "stop"
        elif finished.reason in ("stop", "length", "cancelled"):
            text = self._pipeline.finish()
            if text:
                self._text.append(text)
                self.untaken += len(text)
            self.reason = "length" if self.silent and finished.reason == "stop" else finished.reason
        elif finished.reason == "error":
            why = f": {finished.why}" if finished.why else ""
            told = f"the steps that this request was in failed{why}"
            self.error = RequestError(told, status=500, code="step_failed")
        else:
            code = "queue_timeout" if finished.reason == "expired" else "shed"
            self.error = CapacityError(f"the request waited and was let go: {finished.reason}", code=code)


def _nothing() -> None:
    """Nobody wants to know."""


class Generation:
    """The choices of one client request, in order.  Whoever made it calls ``close`` in the end, however it ends."""

    def __init__(self, choices: Sequence[Choice], on_close: Callable[[Generation], None]) -> None:
        self.choices = choices
        self.times: Sequence[Times] = ()
        """Of each choice, if somebody asked for them."""
        self.most_untaken = 0
        """Letters that may wait to be taken; with more, ``overflow`` is called."""
        self.overflow: Callable[[], None] | None = None
        self.notice = ""
        """A word for its client beside the answer, if there is one to say."""
        self._bell = Bell()
        self._ring = self._bell.ring
        self._ends: dict[Bell, None] = {}
        """Of those who wait for the end: there may be several."""
        self._over = 0
        self._on_close: Callable[[Generation], None] | None = on_close

    def tell(self) -> None:
        """Something changed."""
        self._ring()
        if self.overflow is not None and self.untaken > self.most_untaken:
            overflow, self.overflow = self.overflow, None
            overflow()

    def pause(self, on: bool) -> None:
        """An operator holds everything, or lets it go on."""
        self.notice = "paused by the operator" if on else "resumed"
        for choice in self.choices:
            choice.hold(on)
        self.tell()

    def tell_end(self) -> None:
        """One of the choices is over."""
        self._over += 1
        for bell in self._ends:
            bell.ring()
        self.tell()

    def rings(self, ring: Callable[[], None]) -> None:
        """Call ``ring`` at each change from now on, in the place of waking who waits for ``news``."""
        self._ring = ring

    async def news(self) -> None:
        """Wait until something changed since the last call (or has already)."""
        await self._bell.heard()

    @property
    def requests(self) -> str:
        """The engine's numbers of its requests, as the journal has them; the first ``MAX_NAMED``, with commas."""
        return ",".join(str(choice.stream.request) for choice in self.choices[:MAX_NAMED])

    @property
    def some_over(self) -> bool:
        """Whether any choice has ended, or failed."""
        return self._over > 0

    @property
    def ended(self) -> bool:
        return self._over == len(self.choices)

    @property
    def error(self) -> StepwellError | None:
        """The first failure among the choices."""
        for choice in self.choices:
            if choice.error is not None:
                return choice.error
        return None

    @property
    def untaken(self) -> int:
        total = 0
        for choice in self.choices:
            total += choice.untaken
        return total

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
        while self.error is None and not all(choice.accepted or choice.over for choice in self.choices):
            await self.news()
        if self.error is not None:
            raise self.error

    async def finished(self) -> None:
        """Wait until every choice has ended; raises the first failure.  Tokens wake nobody who waits here."""
        bell = Bell()
        self._ends[bell] = None
        try:
            while self.error is None and not self.ended:
                await bell.heard()
        finally:
            del self._ends[bell]
        if self.error is not None:
            raise self.error

    def cancel(self) -> None:
        """Whatever still runs is not wanted any more."""
        for choice in self.choices:
            choice.stream.cancel()

    def fail(self, error: StepwellError) -> None:
        """Whatever still runs ends with ``error``."""
        for choice in self.choices:
            choice.fail(error)

    def close(self) -> None:
        """Cancel what still runs and give the place back; harmless the second time.

        Nobody is told anything any more, and nothing holds on to anything in a circle: at hundreds of answers a second
        looking for circles would hold all others up.
        """
        self.cancel()
        self._ring, self.overflow = self._bell.ring, None
        for choice in self.choices:
            choice.release()
        if self._on_close is not None:
            closed, self._on_close = self._on_close, None
            closed(self)
