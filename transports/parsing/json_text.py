"""Where a JSON value that comes in pieces ends.  What is in it is not looked at: braces, brackets and strings count."""

from __future__ import annotations

import re

_STRUCTURE = re.compile(r'["{}\[\]]')
_IN_STRING = re.compile(r'["\\]')
_AFTER_SCALAR = re.compile(r"[\s,}\]]")


class Extent:
    """Of one value.  Feed it the value's text, from its first letter on and letter for letter once."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._scalar: bool | None = None

    def feed(self, text: str, at: int) -> int:
        """``text`` goes on at ``at``.  Where the value's end is; -1 if it is not in there."""
        if self._scalar is None:
            self._scalar = text[at] not in '"{['
        if self._scalar:
            found = _AFTER_SCALAR.search(text, at)
            return found.start() if found else -1
        while 0 <= at < len(text):
            at = self._string(text, at) if self._in_string else self._outside(text, at)
            if at >= 0 and not self._depth and not self._in_string:
                return at
        return -1

    def _string(self, text: str, at: int) -> int:
        if self._escaped:
            self._escaped = False
            return at + 1
        found = _IN_STRING.search(text, at)
        if found is None:
            return -1
        if found[0] == '"':
            self._in_string = False
        else:
            self._escaped = True
        return found.end()

    def _outside(self, text: str, at: int) -> int:
        found = _STRUCTURE.search(text, at)
        if found is None:
            return -1
        if found[0] == '"':
            self._in_string = True
        else:
            self._depth += 1 if found[0] in "{[" else -1
        return found.end()
