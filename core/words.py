"""A tokenizer that needs no model: common English words, then pairs of bytes, then bytes.

For rehearsals with a backend that computes nothing: any text goes in and comes out again, and English takes about one
token for three bytes, where models' own tokenizers take one for four.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_COMMON = """
the of and to in is that it for was on are as with his they at be this from have or by one had not but what all were
when we there can an your which their said if do will each about how up out them then she many some so these would other
into has more her two like him see time could no make than first been its who now people my made over did down only way
find use may water long little very after words called just where most know get through back much before go good new
write our used me man too any day same right look think also around another came come work three word must because does
part even place well such here take why things help put years different away again off went old number great tell men
say small every found still between name should home big give air line set own under read last never us left end along
while might next sound below saw something thought both few those always looked show large often together asked house
don't world going want school important until form food keep children feet land side without boy once animals life
enough took four head above kind began almost live page got earth need far hand high year mother light country father
let night picture being study second book carry science eat room friend idea fish mountain north base hear horse cut
sure watch color face wood main open seem begin step steps queue serve request token tokens memory batch model answer
"""

TEXT = """
 The well is deep, and the way down to its water is a stair. People go down one step at a time, and the same step is
 used by all of them. Those who carry little are soon back in the light. Those who carry much rest on the way, and let
 others go by. When the water is high there are few steps to go, and when it is low there are many; but nobody is asked
 how many before the first. What can be said is how long each one takes, who is on it now, and who is next.
"""
"""What a rehearsed model says, again and again."""

_PIECE = re.compile(rb" ?[A-Za-z']+|[^A-Za-z' ]+| ")
_PAIRS, _WORDS = 256, 256 + 65_536
_LONGEST, _MOST = 16, 4096
"""Of spelled words that are remembered: their bytes, and how many they are."""


class WordTokenizer:
    """Implements ``protocols.Tokenizer``; there are no special tokens."""

    end_tokens: frozenset[int] = frozenset()

    def __init__(self) -> None:
        words = dict.fromkeys(each.encode() for each in _COMMON.split())
        self._words = [*words, *(b" " + each for each in words)]
        self._ids = {word: _WORDS + index for index, word in enumerate(self._words)}
        self._spelled: dict[bytes, list[int]] = {}
        """Words that are none of the common ones, as they came."""
        self.vocab_size = _WORDS + len(self._words)

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids; text that is no valid Unicode has its faults replaced."""
        known = self._ids
        ids: list[int] = []
        for piece in _PIECE.findall(text.encode("utf-8", "replace")):
            id = known.get(piece)
            if id is not None:
                ids.append(id)
                continue
            ids += self._spelled.get(piece) or self._spell(piece)
        return ids

    def _spell(self, piece: bytes) -> list[int]:
        ids = [_PAIRS + (a << 8 | b) for a, b in zip(piece[::2], piece[1::2], strict=False)]
        if len(piece) & 1:
            ids.append(piece[-1])
        if len(piece) <= _LONGEST and len(self._spelled) < _MOST:
            self._spelled[piece] = ids
        return ids

    def token_bytes(self, token: int) -> bytes:
        """Empty for an id that there is not."""
        if not 0 <= token < self.vocab_size:
            return b""
        if token < _PAIRS:
            return bytes((token,))
        return (token - _PAIRS).to_bytes(2) if token < _WORDS else self._words[token - _WORDS]

    def pair(self, two: bytes) -> int:
        """The token of two bytes, whatever word they may be."""
        high, low = two
        return _PAIRS + (high << 8 | low)

    def decode(self, tokens: Sequence[int]) -> bytes:
        return b"".join(map(self.token_bytes, tokens))
