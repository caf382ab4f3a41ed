"""A parser written as if the whole text were there, run on a text that comes in pieces.

A grammar is a generator over a ``Source``: whatever needs a letter that is not there yet yields, and goes on when more
came.  So what it decides depends on the letters alone, never on how they were cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from typing import TypeVar

from stepwell.core.errors import InvariantError
from stepwell.core.parsing import MOST_HELD, Said
from stepwell.transports.parsing.json_text import Extent

R = TypeVar("R")
Reads = Generator[None, None, R]
"""Reads a part of the text, waiting for it where it must."""

_WHITE = re.compile(r"\s*")
_WORD = re.compile(r"[\w.:-]*")


class NoCall(Exception):
    """What was taken for a call is none; nothing was said of it yet."""


class Source:
    """The text from the first letter on of which nothing was said, and how far it was read."""

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.ended = False
        self.out: list[Said] = []

    def drop(self) -> None:
        """What was read is done with."""
        if self.at:
            self.text, self.at = self.text[self.at :], 0

    def more(self) -> Reads[bool]:
        """Wait for a letter at ``at``; False if the text ends there."""
        while self.at >= len(self.text) and not self.ended:
            self._bound(len(self.text))
            yield
        return self.at < len(self.text)

    def white(self) -> Reads[None]:
        """Read over white space."""
        while (yield from self.more()):
            end = _end(_WHITE, self.text, self.at)
            if end == self.at:
                return
            self.at = end

    def sees(self, mark: str) -> Reads[bool]:
        """Whether the text goes on with ``mark``."""
        while not self.text.startswith(mark, self.at):
            rest = self.text[self.at :]
            if self.ended or not mark.startswith(rest):
                return False
            yield
        return True

    def takes(self, mark: str) -> Reads[bool]:
        """The same, and reads it."""
        found = yield from self.sees(mark)
        if found:
            self.at += len(mark)
            self._bound(self.at)
        return found

    def expect(self, mark: str) -> Reads[None]:
        """Read it; raises ``NoCall`` if something else comes."""
        if not (yield from self.takes(mark)):
            raise NoCall

    def value(self) -> Reads[str]:
        """One JSON value; raises ``NoCall`` if there is none."""
        begin, extent = self.at, Extent()
        while (yield from self.more()):
            end = extent.feed(self.text, self.at)
            if end >= 0:
                self.at = end
                self._bound(end)
                return self.text[begin:end]
            self.at = len(self.text)
        raise NoCall

    def word(self, most: int) -> Reads[str]:
        """Letters, digits and ``_ . : -``, at least one; raises ``NoCall`` if there is none or too many."""
        begin = self.at
        while (yield from self.more()):
            end = _end(_WORD, self.text, self.at)
            if end - begin > most:
                raise NoCall
            if end == self.at:
                break
            self.at = end
        if self.at == begin:
            raise NoCall
        return self.text[begin : self.at]

    def upto(self, mark: str, most: int) -> Reads[str]:
        """What is before ``mark``, which is read too; raises ``NoCall`` if it does not come within ``most`` letters."""
        begin = self.at
        while (end := self.text.find(mark, begin)) < 0:
            if self.ended or len(self.text) - begin > most + len(mark):
                raise NoCall
            yield
        if end - begin > most:
            raise NoCall
        self.at = end + len(mark)
        return self.text[begin:end]

    def _bound(self, size: int) -> None:
        if size > MOST_HELD:
            raise NoCall


class Machine:
    """A grammar, and the text that it has so far."""

    def __init__(self, grammar: Callable[[Source], Reads[None]]) -> None:
        self._source = Source()
        self._reads = grammar(self._source)

    @property
    def held(self) -> int:
        return len(self._source.text)

    def feed(self, text: str) -> list[Said]:
        source = self._source
        source.text += text
        next(self._reads, None)
        said, source.out = source.out, []
        return said

    def finish(self) -> list[Said]:
        self._source.ended = True
        if next(self._reads, self) is not self:
            raise InvariantError("a parser waits for more of a text that has ended")
        return self._source.out


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at
