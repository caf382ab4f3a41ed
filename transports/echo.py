"""What the models that are none need beside their backends: tokens, and what a chat is.

``echo`` answers with its own prompt, so that a server can be tried and tested without any model; bytes are its tokens.
``costmodel`` rehearses one: its prompts are whole conversations, as a model's are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepwell.core.words import WordTokenizer
from stepwell.transports.chat import Message


class ByteTokenizer:
    """Every byte of UTF-8 is a token; there are no special ones."""

    vocab_size = 256
    end_tokens: frozenset[int] = frozenset()

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        return list(text.encode("utf-8", "replace"))

    def token_bytes(self, token: int) -> bytes:
        return bytes((token,)) if 0 <= token < 256 else b""

    def decode(self, tokens: Sequence[int]) -> bytes:
        return bytes(tokens)


def last_message(messages: Sequence[Message], arguments: Mapping[str, Any]) -> list[int]:
    """A chat template: what was said last, and nothing around it."""
    return list(str(messages[-1]["content"]).encode("utf-8", "replace"))


_WORDS = WordTokenizer()


def conversation(messages: Sequence[Message], arguments: Mapping[str, Any]) -> list[int]:
    """A chat template: all that was said, with who said it."""
    return _WORDS.encode("".join(f"{each['role']}: {each.get('content') or ''}\n" for each in messages))
