"""What clients are told of the numbers under which the journal has their requests.

Numbers count up, so two of them tell what everybody asked in between.  Where there are keys, who asks shares the server
with others whom that does not concern: they are told a name in its place, of which only this process knows the number.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable
from hashlib import blake2b

HALF, ROUNDS = 4, 4
"""Bytes of each half of a name, and rounds of the permutation (Luby and Rackoff, 1988: four are as good as chance)."""
_NAME = re.compile(rf"[0-9a-f]{{{4 * HALF}}}")


class RequestNames:
    """``hidden``: whether numbers are nobody's business."""

    def __init__(self, hidden: Callable[[], bool]) -> None:
        self._hidden = hidden
        self._key = secrets.token_bytes(32)

    def told(self, numbers: Iterable[int]) -> str:
        """With commas."""
        return ",".join(map(self._name if self._hidden() else str, numbers))

    def number(self, told: str) -> int | None:
        """The number that was told so; None if that is none."""
        if told.isascii() and told.isdigit() and len(told) < 2 * HALF * 2:
            return int(told)
        if not _NAME.fullmatch(told):
            return None
        left, right = int(told[: 2 * HALF], 16), int(told[2 * HALF :], 16)
        for round in reversed(range(ROUNDS)):
            left, right = right ^ self._mixed(left, round), left
        number = left << 8 * HALF | right
        return number if number < 1 << 62 else None

    def _name(self, number: int) -> str:
        left, right = number >> 8 * HALF, number & ((1 << 8 * HALF) - 1)
        for round in range(ROUNDS):
            left, right = right, left ^ self._mixed(right, round)
        return f"{left:0{2 * HALF}x}{right:0{2 * HALF}x}"

    def _mixed(self, half: int, round: int) -> int:
        said = half.to_bytes(HALF, "big") + bytes([round])
        return int.from_bytes(blake2b(said, key=self._key, digest_size=HALF).digest(), "big")
