"""The events of one response, numbered from 0, as what they are made of: they are put into words when somebody reads.

Kept like this a piece of text costs a hundred bytes more than itself, and an event read again is the same to the byte.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from stepwell.transports.errors import RequestError

COST = 96
"""Bytes of an entry beside its text."""


class Entry(msgspec.Struct, gc=False):
    """``kind`` is the event's type, ``item`` the output item that it is of, ``data`` what else it says."""

    kind: str
    item: int = 0
    data: Any = None


class EventLog:
    """At most about ``most`` bytes; with more, the first quarter is dropped."""

    def __init__(self, most: int) -> None:
        self.first = 0
        """The number of the first that is still there."""
        self.size = 0
        self._most = most
        self._entries: list[Entry] = []

    @property
    def end(self) -> int:
        """The number of the next one."""
        return self.first + len(self._entries)

    def add(self, entry: Entry) -> None:
        self._entries.append(entry)
        self.size += _size(entry)
        if self.size > self._most:
            self._drop()

    def add_text(self, kind: str, item: int, text: str) -> None:
        """The same of a piece of text, which nearly all of them are."""
        self._entries.append(Entry(kind, item, text))
        self.size += COST + sys.getsizeof(text)
        if self.size > self._most:
            self._drop()

    def at(self, number: int) -> Entry:
        """Raises ``RequestError`` if it is gone."""
        if number < self.first:
            raise RequestError(
                f"event {number} is no longer kept, the first that is there is {self.first};"
                " without stream the response has all of its text",
                field="starting_after",
                status=410,
                code="events_gone",
            )
        return self._entries[number - self.first]

    def _drop(self) -> None:
        aim, count = self._most * 3 // 4, 0
        while self.size > aim and count < len(self._entries) - 1:
            self.size -= _size(self._entries[count])
            count += 1
        del self._entries[:count]
        self.first += count


def _size(entry: Entry) -> int:
    data = entry.data
    if isinstance(data, str):
        return COST + sys.getsizeof(data)
    return COST if data is None else COST + 300 * len(data)
