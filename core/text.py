"""Token ids to text, as they come: whole characters, stop strings, and nothing ever taken back.

One ``TextPipeline`` per choice.  Streamed or not, an answer goes through it, and its text depends on the tokens alone,
never on how many came per call:

- **Bytes become characters when they are whole.**  A character whose bytes straddle tokens waits for its last byte.
  U+FFFD stands for bytes that can never be part of a character, and for nothing else: what is still incomplete when
  the answer ends is dropped.
- **Stop strings.**  The first one to complete ends the text; of several that complete with the same character the one
  that began earliest.  Held back is only the longest suffix that is a proper prefix of some stop string.
- **The first space.**  Some tokenizers (SentencePiece) write a word's space in front of it and take off the one that
  an answer begins with.  An ``answer`` follows the tokenizer's ``decode`` there; a ``continuation`` of somebody's text
  keeps the space.  Only the first token that has bytes can differ.

The cost of a token depends on the token, not on how much came before it.
"""

from __future__ import annotations

from array import array
from codecs import getincrementaldecoder
from collections.abc import Container, Iterable, Sequence
from typing import Literal

from stepwell.core.errors import UserError
from stepwell.core.protocols import Tokenizer

_Utf8 = getincrementaldecoder("utf-8")

Opening = Literal["answer", "continuation"]


class StopStrings:
    """Stop strings, compiled once per request: an automaton whose state is the longest suffix that may still match.

    A letter takes some hundred bytes, so whoever lets clients choose the strings bounds all of their letters together.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        for index, stop in enumerate(stops):
            if not stop:
                raise UserError("a stop string may not be empty", field=f"stop[{index}]")
        self._stops = tuple(stops)
        self._next: dict[int, int] = {}
        """By state and character (``_key``)."""
        self._ends = array("i", [-1])
        """Per state: the longest stop string that the text ends with there, by its place; -1: none."""
        self._fall = array("i", [0])
        """Per state: the state of the next shorter suffix that is a prefix of some stop string."""
        self._held = array("i", [0])
        """Per state: the length of the longest suffix that is a proper prefix of some stop string."""
        self._link(self._grow())

    def _grow(self) -> list[list[tuple[int, int]]]:
        """The states of every prefix.  Gives the steps to them, shortest first: by length, (key, state before)."""
        levels: list[list[tuple[int, int]]] = [[] for _ in range(max(map(len, self._stops), default=0))]
        for place, stop in enumerate(self._stops):
            state = 0
            for depth, char in enumerate(stop):
                key = _key(state, char)
                if key not in self._next:
                    levels[depth].append((key, state))
                    self._next[key] = len(self._ends)
                    self._ends.append(-1)
                    self._fall.append(0)
                    self._held.append(0)
                if depth:
                    self._held[state] = depth
                state = self._next[key]
            self._ends[state] = place
        return levels

    def _link(self, levels: list[list[tuple[int, int]]]) -> None:
        for level in levels:
            for key, before in level:
                state = self._next[key]
                fall = self._fall[state] = self.step(self._fall[before], chr(key & _CHAR)) if before else 0
                if self._ends[state] < 0:
                    self._ends[state] = self._ends[fall]
                self._held[state] = self._held[state] or self._held[fall]

    def __bool__(self) -> bool:
        return bool(self._stops)

    def step(self, state: int, char: str) -> int:
        """The state after one more character; 0 is the state in which nothing can match."""
        follow = self._next.get
        code = ord(char)  # ``_key`` without a call: this is done for every letter of every answer
        while (after := follow(state << 21 | code)) is None and state:
            state = self._fall[state]
        return after or 0

    def complete(self, state: int) -> str:
        """The longest stop string that the text ends with, or nothing."""
        place = self._ends[state]
        return self._stops[place] if place >= 0 else ""

    def held(self, state: int) -> int:
        """How many characters at the end of the text may yet turn out to be part of a stop string."""
        return self._held[state]


_CHAR = (1 << 21) - 1


def _key(state: int, char: str) -> int:
    return state << 21 | ord(char)


NO_STOPS = StopStrings(())


class TextPipeline:
    """The text of one choice.  ``feed`` token ids as they come and send what it returns; at the end ``finish``.

    ``hidden`` are tokens that are not shown whatever their bytes: end tokens and the request's own stop tokens.
    ``min_tokens``: a stop string that completes earlier than with that many tokens is text like any other.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stops: StopStrings = NO_STOPS,
        include_stop: bool = False,
        min_tokens: int = 0,
        hidden: Container[int] = frozenset(),
        opening: Opening = "answer",
    ) -> None:
        self.fed = 0
        """Tokens taken in."""
        self.sent = 0
        """Characters handed out; never goes back."""
        self.stop_at: int | None = None
        """How many tokens are the answer, once a stop string is complete: for ``Engine.stop(request, keep)``."""
        self.stopped_by: str | None = None
        """The stop string that ended the text."""
        self.looks = bool(stops)
        """Whether its text may end the answer."""
        self._tokenizer = tokenizer
        self._stops = stops
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._hidden = hidden
        self._begun = opening == "continuation"
        self._utf8 = _Utf8("replace")
        self._state = 0
        self._kept = ""
        """Text not handed out yet, since a stop string may have begun in it."""
        self._over = False

    def feed(self, tokens: Iterable[int]) -> str:
        """Take in tokens and return the text that is now certain.  After a stop string nothing more comes."""
        if self._begun and not (self.looks or self._over):
            return self._plain(list(tokens))
        out = ""
        for token in tokens:
            if self._over:
                break
            self.fed += 1
            data = self._bytes(token)
            if data:
                # Most text is ASCII, and most of the decoder's time is its own.
                whole = data.isascii() and not self._utf8.buffer
                text = data.decode("ascii") if whole else self._utf8.decode(data)
                out += self._check(text) if self.looks and text else text
        self.sent += len(out)
        return out

    def _plain(self, tokens: list[int]) -> str:
        """All at once, where no text ends the answer."""
        hidden, bytes_of = self._hidden, self._tokenizer.token_bytes
        self.fed += len(tokens)
        data = b"".join([bytes_of(token) for token in tokens if token not in hidden])
        out = data.decode("ascii") if data.isascii() and not self._utf8.buffer else self._utf8.decode(data)
        self.sent += len(out)
        return out

    def finish(self) -> str:
        """The answer ended: what was held back for a stop string that did not come.  A cut-off character is dropped."""
        out, self._kept, self._over = ("" if self._over else self._kept), "", True
        self.sent += len(out)
        return out

    def _bytes(self, token: int) -> bytes:
        if token in self._hidden:
            return b""
        data = self._tokenizer.token_bytes(token)
        if not self._begun and data:
            self._begun = True
            return self._tokenizer.decode((token,))
        return data

    def _check(self, text: str) -> str:
        stops, state = self._stops, self._state
        for index, char in enumerate(text):
            state = stops.step(state, char)
            if state and self.fed >= self._min_tokens and (stop := stops.complete(state)):
                return self._stop(stop, text[: index + 1])
        self._state = state
        text = self._kept + text
        certain = len(text) - stops.held(state)
        self._kept = text[certain:]
        return text[:certain]

    def _stop(self, stop: str, text: str) -> str:
        self.stop_at, self.stopped_by, self._over = self.fed, stop, True
        text = self._kept + text
        self._kept = ""
        return text if self._include_stop else text[: len(text) - len(stop)]
