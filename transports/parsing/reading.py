"""One answer as its parsers read it: what is new for a stream, and all of it in the end."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from itertools import groupby

from stepwell.core.parsing import (
    AnswerReader,
    CallArguments,
    CallBegan,
    CallEnded,
    Content,
    Reasoning,
    ReasoningReader,
    Said,
)
from stepwell.core.text import TextPipeline

ID_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"
ID_SIZE = 9
"""Nine letters and digits: some families' templates refuse any other id, and none refuses these."""


class Call:
    """A call of a tool, as far as it was read.  ``complete``: its arguments came to their end."""

    def __init__(self, name: str, id: str) -> None:
        self.name = name
        self.id = id
        self.complete = False
        self._arguments: list[str] = []

    @property
    def arguments(self) -> str:
        return "".join(self._arguments)

    def add(self, text: str) -> None:
        self._arguments.append(text)


class Reading:
    """Fed with an answer's text.  ``one_call``: it is over with its first call."""

    def __init__(
        self, reasoning: ReasoningReader | None, tools: AnswerReader | None, *, one_call: bool = False
    ) -> None:
        self.calls: list[Call] = []
        self.over = False
        """Nothing that comes is the answer's any more."""
        self.reasoning_tokens = 0
        self._one_call = one_call
        self._think = reasoning
        self._tools = tools
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._news: list[Said] = []

    @property
    def content(self) -> str:
        return "".join(self._content)

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    def token(self, text: str) -> bool:
        """A token's text; the token counts as reasoning if that is where it began or ended.  Whether all is over."""
        before = self._think is not None and self._think.inside
        if text:
            self.feed(text)
        self.reasoning_tokens += before or (self._think is not None and self._think.inside)
        return self.over

    def feed(self, text: str) -> None:
        """More of the text."""
        if self._think is None:
            self._to_tools(text)
            return
        self._sort(self._think.feed(text))
        if self._think.over:
            self._think = None

    def finish(self) -> None:
        """The text is over.  Harmless the second time."""
        if self.over:
            return
        if self._think is not None:
            self._sort(self._think.finish())
            self._think = None
        if self._tools is not None:
            self._add(self._tools.finish())
        self.over = True

    def take(self) -> list[Said]:
        """What is new, without neighbours of one kind.  Calls have their ids."""
        news, self._news = self._news, []
        return _joined(news)

    def _sort(self, said: Sequence[Said]) -> None:
        for each in said:
            if isinstance(each, Content):
                self._to_tools(each.text)
            else:
                self._add((each,))

    def _to_tools(self, text: str) -> None:
        self._add([Content(text)] if self._tools is None else self._tools.feed(text))

    def _add(self, said: Sequence[Said]) -> None:
        for each in said:
            if self.over:
                return
            if isinstance(each, CallBegan):
                each = CallBegan(each.name, each.id or _new_id())
                self.calls.append(Call(each.name, each.id))
            elif isinstance(each, CallArguments):
                self.calls[-1].add(each.text)
            elif isinstance(each, CallEnded):
                self.calls[-1].complete = each.complete
                self.over = self._one_call
            else:
                (self._content if isinstance(each, Content) else self._reasoning).append(each.text)
            self._news.append(each)


class ReadPipeline:
    """A text pipeline whose text is read as it comes.  To a choice it is like any other."""

    def __init__(self, pipeline: TextPipeline, reading: Reading) -> None:
        self._pipeline = pipeline
        self._reading = reading
        self._fed = 0
        self._cut: int | None = None

    @property
    def stop_at(self) -> int | None:
        """Tokens of the answer, if it ended before the model ended it."""
        return self._pipeline.stop_at if self._cut is None else self._cut

    @property
    def stopped_by(self) -> str | None:
        return self._pipeline.stopped_by

    def feed(self, tokens: Sequence[int]) -> str:
        """Token by token, since each is reasoning or is not."""
        parts: list[str] = []
        for token in tokens:
            if self.stop_at is not None:
                break
            self._fed += 1
            text = self._pipeline.feed((token,))
            parts.append(text)
            if self._reading.token(text):
                self._cut = self._fed
            elif self._pipeline.stop_at is not None:
                self._reading.finish()
        return "".join(parts)

    def finish(self) -> str:
        text = self._pipeline.finish()
        if text and not self._reading.over:
            self._reading.feed(text)
        self._reading.finish()
        return text


def _new_id() -> str:
    return "".join(secrets.choice(ID_LETTERS) for _ in range(ID_SIZE))


def _joined(news: Sequence[Said]) -> list[Said]:
    made: list[Said] = []
    for kind, group in groupby(news, type):
        if kind in (Content, Reasoning, CallArguments):
            made.append(kind("".join([each.text for each in group])))  # type: ignore[union-attr]
        else:
            made += group
    return made
