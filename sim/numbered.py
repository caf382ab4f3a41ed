"""A text whose every token says which one of its answer it is, so that a client can tell whether one is missing.

A token is two letters, its number in base 64; after 4,096 of them the numbers begin again.
"""

from __future__ import annotations

from stepwell.core.words import WordTokenizer

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
NUMBERED = "".join(high + low for high in LETTERS for low in LETTERS)
"""The text of tokens 0 to 4,095."""


def numbered_tokens(tokenizer: WordTokenizer) -> list[int]:
    """``NUMBERED`` as tokens of two letters each."""
    return [tokenizer.pair(NUMBERED[at : at + 2].encode()) for at in range(0, len(NUMBERED), 2)]


def number_of(letters: str) -> int:
    """Of a token's two letters.  Raises ``ValueError`` if they are none."""
    if len(letters) != 2:
        raise ValueError(f"a token is two letters, not {letters[:8]!r}")
    return LETTERS.index(letters[0]) << 6 | LETTERS.index(letters[1])
