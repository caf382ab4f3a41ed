"""What the model ``echo`` needs beside its backend: bytes are tokens, and a chat is what was said in it.

It answers with its own prompt, so that a server can be tried, tested and rehearsed without any model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
