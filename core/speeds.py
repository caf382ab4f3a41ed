"""How fast the device computes and copies, learnt from what finished steps took.

Integers only, and nothing but events goes in, so a replay learns the same.  A rate is the median of the latest few
measurements: one slow step (a page fault, a first launch) does not move it.

- A step that copied pages: the time that its copies took, by pages.
- A step with prompt tokens: its time, less its copies and less the latest step that only decoded if it decoded as well,
  by tokens; so what remains is what the prompt added.

Until it was measured a token is taken to cost ``TOKEN_PS``, and until three copies were, a page to cost an eighth of
what its tokens would: so ``auto`` begins by swapping, and finds out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

TOKEN_PS = 30_000_000
"""What the reference cost model takes for a prompt token."""

KEPT = 9
"""Measurements of each kind that are remembered."""

BELIEVED = 3
"""Copies that must have been measured before they are believed: the first one often pays for more than itself."""


class Speeds:
    """``token_ps``: picoseconds that a prompt token takes to compute; ``page_ns``: nanoseconds that a page takes to
    copy between device and host, either way; ``decode_ns``: what the latest step took that did nothing but decode (0:
    none yet)."""

    __slots__ = ("_copies", "_page_size", "_prefills", "decode_ns")

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._prefills: deque[int] = deque(maxlen=KEPT)
        self._copies: deque[int] = deque(maxlen=KEPT)
        self.decode_ns = 0

    @property
    def token_ps(self) -> int:
        return _median(self._prefills) if self._prefills else TOKEN_PS

    @property
    def measured(self) -> bool:
        """Whether ``token_ps`` was, or is only taken to be so."""
        return bool(self._prefills)

    @property
    def page_ns(self) -> int:
        if len(self._copies) >= BELIEVED:
            return _median(self._copies)
        return self.token_ps * self._page_size // 8_000

    def learn(self, tokens: int, pages: int, decoded: bool, elapsed_ns: int, copy_ns: int) -> None:
        """A step is done that computed ``tokens`` of prompts and copied ``pages``, beside a token each for those that
        decode, if it did that.  A time of 0 was not measured."""
        if elapsed_ns <= 0:
            return
        if not tokens and not pages:
            self.decode_ns = elapsed_ns
            return
        if pages and copy_ns > 0:
            self._copies.append(copy_ns // pages)
        if tokens and (copy_ns > 0 or not pages):
            added_ns = elapsed_ns - copy_ns - (self.decode_ns if decoded else 0)
            token_ps = added_ns * 1000 // tokens
            self._prefills.append(token_ps if token_ps > 1 else 1)

    def dump(self) -> list[Any]:
        """Everything as JSON-like data, for a snapshot."""
        return [self.decode_ns, list(self._prefills), list(self._copies)]

    def load(self, data: list[Any]) -> None:
        """Take over what ``dump`` said."""
        self.decode_ns = data[0]
        self._prefills, self._copies = deque(data[1], KEPT), deque(data[2], KEPT)


def _median(values: Iterable[int]) -> int:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
