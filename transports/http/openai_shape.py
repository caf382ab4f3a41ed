"""An answer in OpenAI's frames, streamed and not.  Chats and texts to complete differ in a few places of it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from stepwell.transports.generation import Choice, Generation
from stepwell.transports.http import sse
from stepwell.transports.http.requests import Shown
from stepwell.transports.http.usage import metrics_of, usage_of
from stepwell.transports.ids import fresh
from stepwell.transports.service import Service

Json = dict[str, Any]
Logprobs = Json | Raw

_PLACE = "\x00text\x00"
_encode = msgspec.json.Encoder().encode
_PLACED = _encode(_PLACE)


class OpenAIShape:
    """One answer in the making: which frame its choices go into.  Chat and text completions differ in three places.

    It lives as long as the answer, and so keeps nothing of the request that could hold on to the whole body.
    """

    prefix: str
    whole: str
    piece: str
    dialect = sse.OPENAI
    prepares = False

    def __init__(self, service: Service, request: Shown, tier: str = "default") -> None:
        self.service = service
        self._tier = tier if request.service_tier is not None else None
        self.id = fresh(f"{self.prefix}-")
        self.created = int(time.time())
        options = request.stream_options
        self.with_usage = bool(request.stream and options and options.include_usage)
        self.running_usage = bool(self.with_usage and options and options.continuous_usage_stats)
        self._with_ids = bool(request.return_token_ids)
        self._with_metrics = bool(request.include_metrics)
        self._interval = request.stream_interval or 1
        self._frames: dict[int, tuple[bytes, bytes]] = {}
        self._greeted: set[int] = set()
        self._ended: set[int] = set()

    # ---- the three places

    async def prepare(self, generation: Generation) -> None:
        """Make what takes long, as far as it is known, before ``events`` or ``answer`` is called."""

    def begins(self, choice: Choice) -> bool:
        """Whether what it begins with is made."""
        return True

    def opening(self, choice: Choice) -> list[tuple[Json, Logprobs | None]]:
        """What a choice begins with, and its log-probabilities."""
        return []

    def delta(self, text: str) -> Json:
        raise NotImplementedError

    def last_delta(self) -> Json:
        raise NotImplementedError

    def message(self, choice: Choice) -> Json:
        raise NotImplementedError

    def deltas(self, choice: Choice) -> list[Json]:
        """What is new, of a choice that is read."""
        raise NotImplementedError

    def reason(self, choice: Choice) -> str:
        """Why it ended."""
        return choice.reason

    def logprobs(self, choice: Choice, start: int, stop: int) -> Json | None:
        raise NotImplementedError

    # ---- frames

    def frame(self, kind: str, choices: list[Json]) -> Json:
        made = {"id": self.id, "object": kind, "created": self.created, "model": self.service.model.name}
        if self._tier is not None:
            made["service_tier"] = self._tier
        return {**made, "choices": choices}

    def events(self, generation: Generation) -> bytes:
        """What is new, framed: text of every choice that has some, and its end once."""
        frames: list[bytes] = []
        for choice in generation.choices:
            self._news(generation, choice, frames)
        return b"".join(frames)

    def _news(self, generation: Generation, choice: Choice, frames: list[bytes]) -> None:
        index = choice.index
        if index not in self._greeted:
            if not self.begins(choice):
                return
            self._greeted.add(index)
            for body, of in self.opening(choice):
                frames.append(sse.data(self._chunk(generation, index, body, None, of)))
        if self._interval > 1 and not choice.over and choice.untaken_tokens < self._interval and choice.started:
            return
        text, start, stop = choice.take()
        logprobs = self.logprobs(choice, start, stop) if choice.logprobs and stop > start else None
        ids = choice.stream.tokens[start:stop] if self._with_ids else None
        if choice.reading is not None or logprobs is not None or ids is not None or self.running_usage:
            self._say(generation, choice, text, logprobs, ids, frames)
        elif text:
            before, after = self._frames.get(index) or self._frame_of(generation, index)
            frames += (before, _encode(text), after)
        if choice.reason and index not in self._ended:
            self._ended.add(index)
            frames.append(sse.data(self._chunk(generation, index, self.last_delta(), self.reason(choice))))

    def _say(
        self,
        generation: Generation,
        choice: Choice,
        text: str,
        logprobs: Logprobs | None,
        ids: list[int] | None,
        frames: list[bytes],
    ) -> None:
        """What is new with all that goes with it, in the first of its chunks."""
        bodies = [self.delta(text)] if choice.reading is None else self.deltas(choice)
        if not bodies and (logprobs or ids):
            bodies = [self.delta("")]
        for body in bodies if text or logprobs or ids or choice.reading is not None else ():
            with_ids = body if ids is None else {**body, "token_ids": ids}
            frames.append(sse.data(self._chunk(generation, choice.index, with_ids, None, logprobs)))
            logprobs, ids = None, [] if ids else ids

    def _frame_of(self, generation: Generation, index: int) -> tuple[bytes, bytes]:
        """What stands around the text of a choice's chunks: the same every time, so it is encoded once."""
        before, _, after = sse.data(self._chunk(generation, index, self.delta(_PLACE), None)).partition(_PLACED)
        self._frames[index] = before, after
        return before, after

    def _chunk(
        self, generation: Generation, index: int, body: Json, reason: str | None, logprobs: Logprobs | None = None
    ) -> Json:
        choice = {"index": index, **body, "logprobs": logprobs, "finish_reason": reason}
        made = self.frame(self.piece, [choice])
        if self.with_usage:
            made["usage"] = usage_of(generation) if self.running_usage else None
        return made

    def closing(self, generation: Generation) -> bytes:
        if not self.with_usage and not self._with_metrics:
            return b""
        return sse.data({**self.frame(self.piece, []), **self._cost(generation)})

    def _cost(self, generation: Generation) -> Json:
        told: Json = {"usage": usage_of(generation)}
        if self._with_metrics:
            told["metrics"] = metrics_of(generation, self.service.scheduler.policy_name)
        return told

    def answer(self, generation: Generation) -> Json:
        choices = []
        for choice in generation.choices:
            _, start, stop = choice.take()
            ended = {"logprobs": self.all_logprobs(choice, start, stop), "finish_reason": self.reason(choice)}
            choices.append({"index": choice.index, **self.message(choice), **ended})
            if self._with_ids:
                choices[-1]["token_ids"] = choice.stream.tokens[start:stop]
        return {**self.frame(self.whole, choices), **self._cost(generation)}

    # ---- log-probabilities

    def all_logprobs(self, choice: Choice, start: int, stop: int) -> Logprobs | None:
        """Of an answer in one piece."""
        return self.logprobs(choice, start, stop)

    def token(self, id: int) -> str:
        return self.service.model.tokenizer.token_bytes(id).decode("utf-8", "replace")

    def prompt_ids(self, choice: Choice) -> Json:
        """The prompt's tokens, where they are asked for."""
        return {"prompt_token_ids": choice.prompt} if self._with_ids else {}

    def rows(self, choice: Choice, start: int, stop: int) -> Iterator[tuple[int, float, Sequence[tuple[int, float]]]]:
        """Of the tokens that are shown: the end token is none of the answer's text."""
        given = choice.logprobs[start:stop]
        ends = self.service.model.tokenizer.end_tokens
        for id, row in zip(choice.stream.tokens[start:stop], given, strict=False):
            if id not in ends:
                yield id, row.logprob, row.top
