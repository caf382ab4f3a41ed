"""Small vocabularies for grammars: every byte is a token, and a few longer ones make it interesting."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

pytest.importorskip("llguidance", reason="needs the extra `model`")

from stepwell.backends.grammar import Grammars, Vocabulary

END, OTHER_END, TOOL = 0, 1, 2
FIRST = 3
LONGER = (b"ab", b"abc", b"aab", b"bb", b'":', b'{"', b'"}', b"}]", b"true", b"\xc3\xa9", b"  ", b'": "', b"12")


def vocabulary(longer: Sequence[bytes] = LONGER) -> Vocabulary:
    """Two end tokens, a token that is no text, the bytes, and the longer ones."""
    pieces = [b"", b"", b"", *(bytes([byte]) for byte in range(256)), *longer]
    return Vocabulary(pieces, {"<end>": END, "<turn>": OTHER_END, "<tool>": TOOL}, [END, OTHER_END])


VOCABULARY = vocabulary()


def spell(data: bytes) -> list[int]:
    """Byte by byte."""
    return [FIRST + byte for byte in data]


def said(tokens: Sequence[int]) -> bytes:
    """The bytes of an answer."""
    return b"".join(VOCABULARY.pieces[token] for token in tokens)


def grammars() -> Grammars:
    """Of the vocabulary above."""
    return Grammars(lambda: VOCABULARY)
