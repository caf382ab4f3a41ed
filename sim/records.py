"""What is kept of each request of a run, and of the gaps between tokens.

Requests that live are structs.  One that has ended is a row of 80 bytes, made a struct again when somebody asks: so a
run of a million requests fits into memory.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from struct import Struct

import msgspec

from stepwell.core.types import RequestId


class RequestRecord(msgspec.Struct, gc=False):
    """One request's life.  Times in ns, 0 where it did not happen; ``reason`` is empty while it runs."""

    id: RequestId
    arrival_ns: int
    prompt_tokens: int
    klass: str
    tenant: str
    admitted_ns: int = 0
    first_token_ns: int = 0
    last_token_ns: int = 0
    finished_ns: int = 0
    tokens: int = 0
    preemptions: int = 0
    reason: str = ""
    priority: int = 0
    program: str = ""


def _integers() -> array[int]:
    return array("q")


class TokenGaps(msgspec.Struct):
    """Inter-token gaps of one class: ``gaps_ns[i]`` occurred ``counts[i]`` times; ``members`` decode together now."""

    gaps_ns: array[int] = msgspec.field(default_factory=_integers)
    counts: array[int] = msgspec.field(default_factory=_integers)
    members: int = 0

    def add(self, gap_ns: int) -> None:
        """One more gap of a single request."""
        self.gaps_ns.append(gap_ns)
        self.counts.append(1)


_ROW = Struct("<7q6i")
_EMPTY = bytes(_ROW.size)


class Records(Mapping[RequestId, RequestRecord]):
    """Records by id, in the order in which the requests came, which is that of their ids.

    ``live`` are those that may still change; what is given of another is a copy.
    """

    def __init__(self, records: Mapping[RequestId, RequestRecord] | None = None) -> None:
        self.live: dict[RequestId, RequestRecord] = {}
        self._words: list[str] = []
        self._numbers: dict[str, int] = {}
        self._ids: array[int] = array("q")
        self._rows = bytearray()
        for record in (records or {}).values():
            self.begin(record)

    def begin(self, record: RequestRecord) -> None:
        """A request that has not ended; its id is greater than all before it."""
        self.live[record.id] = record
        self._ids.append(record.id)
        self._rows += _EMPTY

    def end(self, record: RequestRecord) -> None:
        """It will not change any more."""
        numbers = self._numbers
        try:
            klass, tenant = numbers[record.klass], numbers[record.tenant]
            program, reason = numbers[record.program], numbers[record.reason]
        except KeyError:
            for word in (record.klass, record.tenant, record.program, record.reason):
                if word not in numbers:
                    numbers[word] = len(numbers)
                    self._words.append(word)
            self.end(record)
            return
        del self.live[record.id]
        _ROW.pack_into(
            self._rows, self._place(record.id) * _ROW.size, record.arrival_ns, record.prompt_tokens,
            record.admitted_ns, record.first_token_ns, record.last_token_ns, record.finished_ns, record.tokens,
            klass, tenant, program, reason, record.preemptions, record.priority,
        )  # fmt: skip

    def _place(self, id: RequestId) -> int:
        """The row of a request; raises ``KeyError`` if there is none."""
        ids = self._ids
        place = id - ids[0] if ids else 0
        if 0 <= place < len(ids) and ids[place] == id:
            return place  # no id was left out
        place = bisect_left(ids, id)
        if place == len(ids) or ids[place] != id:
            raise KeyError(id)
        return place

    def _read(self, place: int) -> RequestRecord:
        (
            arrival_ns, prompt_tokens, admitted_ns, first_ns, last_ns, finished_ns, tokens,
            klass, tenant, program, reason, preemptions, priority,
        ) = _ROW.unpack_from(self._rows, place * _ROW.size)  # fmt: skip
        words = self._words
        return RequestRecord(
            self._ids[place], arrival_ns, prompt_tokens, words[klass], words[tenant], admitted_ns, first_ns, last_ns,
            finished_ns, tokens, preemptions, words[reason], priority, words[program],
        )  # fmt: skip

    def __getitem__(self, id: RequestId) -> RequestRecord:
        record = self.live.get(id)
        return self._read(self._place(id)) if record is None else record

    def __iter__(self) -> Iterator[RequestId]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)
