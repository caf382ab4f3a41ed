"""A device that takes time and numbers its tokens; needs nothing of Stepwell and nothing of the peer it is put into."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping


class Pace:
    """When steps end.  A step that is begun late, but within its own length, ends when it would have ended."""

    def __init__(self, base_s: float, each_s: float, now: Callable[[], float]) -> None:
        """A step takes ``base_s``, and ``each_s`` for each request in it."""
        self._base_s, self._each_s, self._now = base_s, each_s, now
        self._ended_s = 0.0

    def end_of(self, requests: int) -> float:
        """By ``now``'s clock, of a step with so many that begins now: a device has the next one in its queue, so the
        host's time between two steps is not added to them."""
        takes_s = self._base_s + self._each_s * requests
        now_s = self._now()
        begins_s = self._ended_s if now_s < self._ended_s + takes_s else now_s
        self._ended_s = begins_s + takes_s
        return self._ended_s


class Numbers:
    """Which token each request gets next."""

    def __init__(self, first: int, count: int) -> None:
        """``first``: the token of number 0; after ``count`` of them they begin again."""
        self._first, self._count = first, count
        self._left: dict[str, int] = {}
        self._made: dict[str, int] = {}

    def add(self, id: str, prompt: int) -> None:
        """It has so many prompt tokens to compute, and no answer yet."""
        self._left[id], self._made[id] = prompt, 0

    def drop(self, ids: Iterable[str]) -> None:
        for id in ids:
            self._left.pop(id, None)
            self._made.pop(id, None)

    def step(self, computed: Mapping[str, int]) -> list[list[int]]:
        """For each request with so many tokens computed: its next token, or none while its prompt is not done."""
        tokens: list[list[int]] = []
        for id, count in computed.items():
            left = self._left[id] = max(self._left[id] - count, 0)
            if left:
                tokens.append([])
                continue
            made = self._made[id]
            self._made[id] = made + 1
            tokens.append([self._first + made % self._count])
        return tokens
