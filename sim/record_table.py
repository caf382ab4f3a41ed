"""Where a run's records grow: requests that live, rows of those that have ended, and the gaps between tokens.

Plain classes in a module of their own, so that compiled code makes and reads them without a look-up by name.
``sim.records`` shows them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from struct import Struct
from typing import Final

from stepwell.core.types import BoxedId, RequestId

_ROW: Final = Struct("<7q6i")
_EMPTY: Final = bytes(_ROW.size)
_ROW_BYTES: Final = _ROW.size

_BATCH: Final = 4096
"""Gaps that are collected before they are packed."""

NEVER: Final = -1
"""No time."""


class TokenGaps:
    """Inter-token gaps of one class: ``gaps_ns[i]`` occurred ``counts[i]`` times; ``members`` decode together now."""

    __slots__ = ("_counts", "_gaps_ns", "_new_counts", "_new_ns", "members")

    def __init__(self) -> None:
        self._gaps_ns: array[int] = array("q")
        self._counts: array[int] = array("q")
        self._new_ns: list[int] = []
        self._new_counts: list[int] = []
        self.members = 0

    @property
    def gaps_ns(self) -> array[int]:
        self._pack()
        return self._gaps_ns

    @property
    def counts(self) -> array[int]:
        self._pack()
        return self._counts

    def add(self, gap_ns: int, count: int) -> None:
        """One more gap, of ``count`` requests."""
        self._new_ns.append(gap_ns)
        self._new_counts.append(count)
        if len(self._new_ns) >= _BATCH:
            self._pack()

    def extend(self, gaps_ns: list[int], count: int) -> None:
        """More gaps, each of ``count`` requests."""
        self._new_ns += gaps_ns
        self._new_counts += [count] * len(gaps_ns)
        if len(self._new_ns) >= _BATCH:
            self._pack()

    def _pack(self) -> None:
        self._gaps_ns.fromlist(self._new_ns)
        self._counts.fromlist(self._new_counts)
        self._new_ns.clear()
        self._new_counts.clear()


class Life:
    """A request that has not ended.  ``RequestRecord`` says what the first fields are.

    ``gaps`` are those of its class.  ``in_group``: it decodes together with others; ``sampled_ns`` is when it sampled
    last outside the group, or ``NEVER``.
    """

    __slots__ = (
        "admitted_ns", "arrival_ns", "finished_ns", "first_token_ns", "gaps", "id", "in_group", "klass",
        "last_token_ns", "preemptions", "priority", "program", "prompt_tokens", "reason", "sampled_ns", "tenant",
        "tokens",
    )  # fmt: skip

    def __init__(
        self,
        id: BoxedId,
        arrival_ns: int,
        prompt_tokens: int,
        klass: str,
        tenant: str,
        priority: int,
        program: str,
        gaps: TokenGaps,
    ) -> None:
        self.id: BoxedId = id
        self.arrival_ns = arrival_ns
        self.prompt_tokens = prompt_tokens
        self.klass = klass
        self.tenant = tenant
        self.priority = priority
        self.program = program
        self.gaps = gaps
        self.admitted_ns = 0
        self.first_token_ns = 0
        self.last_token_ns = 0
        self.finished_ns = 0
        self.tokens = 0
        self.preemptions = 0
        self.reason = ""
        self.in_group = False
        self.sampled_ns = NEVER


class RecordTable:
    """``live`` are those that may still change; one that has ended is a row of 80 bytes.

    Requests come in the order of their ids.
    """

    __slots__ = ("_count", "_dense", "_first", "_numbers", "_rows", "ids", "live", "words")

    def __init__(self) -> None:
        self.live: dict[RequestId, Life] = {}
        self.words: list[str] = []
        self._numbers: dict[str, int] = {}
        self.ids: array[int] = array("q")
        self._rows = bytearray()
        self._first: RequestId = 0
        self._count = 0
        self._dense = True
        """No id was left out so far."""

    def begin(self, life: Life) -> None:
        """A request that has not ended; its id is greater than all before it."""
        id = life.id
        self.live[id] = life
        if not self._count:
            self._first = id
        elif id != self._first + self._count:
            self._dense = False
        self._count += 1
        self.ids.append(id)
        self._rows += _EMPTY

    def end(self, life: Life) -> None:
        """It will not change any more."""
        del self.live[life.id]
        _ROW.pack_into(
            self._rows, self.place(life.id) * _ROW_BYTES, life.arrival_ns, life.prompt_tokens, life.admitted_ns,
            life.first_token_ns, life.last_token_ns, life.finished_ns, life.tokens, self._number(life.klass),
            self._number(life.tenant), self._number(life.program), self._number(life.reason), life.preemptions,
            life.priority,
        )  # fmt: skip

    def row(self, place: int) -> tuple[int, ...]:
        """What ``end`` packed, words as their places in ``words``."""
        return _ROW.unpack_from(self._rows, place * _ROW_BYTES)

    def place(self, id: RequestId) -> int:
        """The row of a request; raises ``KeyError`` if there is none."""
        place = id - self._first if self._dense else bisect_left(self.ids, id)
        if not 0 <= place < self._count or (not self._dense and self.ids[place] != id):
            raise KeyError(id)
        return place

    def _number(self, word: str) -> int:
        number = self._numbers.get(word)
        if number is None:
            number = self._numbers[word] = len(self.words)
            self.words.append(word)
        return number
