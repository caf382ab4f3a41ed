"""A token bucket from which is reserved first and settled afterwards.  It has no clock: the time is handed in.

Integers only, and nothing is rounded: the level is kept in tokens times nanoseconds of a minute, in which a rate of so
many tokens a minute is so many a nanosecond.
"""

from __future__ import annotations

MINUTE_NS = 60_000_000_000


class Bucket:
    """Holds ``per_minute`` tokens at most, which is what is there at first, and gets as many a minute.

    What turns out to have cost more than was reserved is owed: the level falls below zero, and grows from there.
    """

    __slots__ = ("_at_ns", "_level", "per_minute")

    def __init__(self, per_minute: int, now_ns: int) -> None:
        self.per_minute = per_minute
        self._level = per_minute * MINUTE_NS
        self._at_ns = now_ns

    def left(self, now_ns: int) -> int:
        """Whole tokens that are there; negative if some are owed."""
        self._fill(now_ns)
        return self._level // MINUTE_NS

    def reserve(self, tokens: int, now_ns: int) -> bool:
        """Take so many, if they are there.  More than it can hold are never there."""
        self._fill(now_ns)
        if tokens * MINUTE_NS > self._level:
            return False
        self._level -= tokens * MINUTE_NS
        return True

    def settle(self, reserved: int, used: int, now_ns: int) -> None:
        """Of ``reserved`` tokens ``used`` were: the rest comes back, or is taken too."""
        self._fill(now_ns)
        self._level = min(self._level + (reserved - used) * MINUTE_NS, self.per_minute * MINUTE_NS)

    def wait_ns(self, tokens: int, now_ns: int) -> int:
        """How long until so many are there if nobody takes any, rounded up; of more than it holds: until it is full."""
        self._fill(now_ns)
        missing = min(tokens, self.per_minute) * MINUTE_NS - self._level
        return -(-missing // self.per_minute) if missing > 0 else 0

    def full(self, now_ns: int) -> bool:
        """It is as a new one would be."""
        self._fill(now_ns)
        return self._level == self.per_minute * MINUTE_NS

    def _fill(self, now_ns: int) -> None:
        """What came since; time that seems to go backwards brings nothing."""
        passed_ns = now_ns - self._at_ns
        if passed_ns > 0:
            self._at_ns = now_ns
            self._level = min(self._level + passed_ns * self.per_minute, self.per_minute * MINUTE_NS)
