"""Which prompts begin alike: texts that grow, and the keys that say so.

A text is known by its keys, one for every ``key_tokens`` that it fills.  What is grown from one text begins with all of
its keys; what is grown twice differs from there on.
"""

from __future__ import annotations

import msgspec

from stepwell.core.errors import UserError


class Text(msgspec.Struct, frozen=True):
    """``tokens`` of context, and the keys of the blocks that these fill."""

    tokens: int
    keys: list[int]


EMPTY = Text(0, [])


class Texts:
    """Makes texts; every key is given out once."""

    def __init__(self, key_tokens: int) -> None:
        if not 1 <= key_tokens <= 1 << 20:
            raise UserError(f"must be between 1 and {1 << 20}, not {key_tokens}", field="key_tokens")
        self._key_tokens = key_tokens
        self._next = 1

    def grow(self, text: Text, tokens: int) -> Text:
        """``text`` and so many tokens more that no other text has."""
        whole = text.tokens + tokens
        return Text(whole, text.keys + self._new(whole // self._key_tokens - len(text.keys)))

    def prompt_keys(self, text: Text) -> list[int]:
        """For a request whose prompt it is: a block that is filled in part has a key that no longer text knows."""
        return text.keys + self._new(1) if text.tokens % self._key_tokens else text.keys

    def _new(self, count: int) -> list[int]:
        first = self._next
        self._next += count
        return list(range(first, self._next))


def answer_keys(prompt: Text, answered: Text) -> tuple[int, ...]:
    """Of the request that turns ``prompt`` into ``answered``."""
    return tuple(answered.keys[len(prompt.keys) :])
