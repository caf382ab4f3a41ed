"""What is between marks: content, given as it comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stepwell.core.parsing import Content, Reasoning
from stepwell.transports.parsing.source import NoCall, Reads, Source

MOST_WHITE = 64
"""Letters of white space before a mark that are nobody's, with it."""

Kind = type[Content] | type[Reasoning]


def upto(source: Source, marks: Sequence[str], *, skips: bool = False, kind: Kind = Content) -> Reads[str]:
    """Say what comes before the first of the marks, and read that.  Gives it; empty if the text ended without one.

    No mark begins with another.  ``skips``: a mark was before, so that white space which comes first is nobody's.
    """
    if skips:
        yield from blank(source)
    starts = {mark[0] for mark in marks}
    while True:
        text = source.text
        at, mark = _first(text, marks)
        if mark:
            certain = _certain(text, at)
            _say(source, certain, kind)
            source.at = at - certain + len(mark)
            return mark
        if source.ended:
            _say(source, len(text), kind)
            return ""
        plain = text and not text[-1].isspace() and starts.isdisjoint(text)
        _say(source, len(text) if plain else _certain(text, len(text) - _begun(text, marks)), kind)
        yield


def blank(source: Source) -> Reads[None]:
    """White space of any length is nobody's."""
    while True:
        source.text = source.text.lstrip()
        if source.text or source.ended:
            return
        yield


def attempt(source: Source, calls: Callable[[Source], Reads[None]]) -> Reads[bool]:
    """Read calls behind a mark.  If there are none, the mark is content like what comes after it."""
    behind = source.at
    try:
        yield from calls(source)
    except NoCall:
        _say(source, behind, Content)
        return False
    source.drop()
    return True


def rest(source: Source, *, skips: bool = False) -> Reads[None]:
    """All of it is content."""
    if skips:
        yield from blank(source)
    while True:
        _say(source, len(source.text), Content)
        if source.ended:
            return
        yield


def _say(source: Source, size: int, kind: Kind) -> None:
    if size:
        source.out.append(kind(source.text[:size]))
    source.text, source.at = source.text[size:], 0


def _first(text: str, marks: Sequence[str]) -> tuple[int, str]:
    at, which = len(text), ""
    for mark in marks:
        found = text.find(mark)
        if 0 <= found < at:
            at, which = found, mark
    return at, which


def _begun(text: str, marks: Sequence[str]) -> int:
    """Letters at the end that a mark may begin with."""
    most = 0
    for mark in marks:
        for size in range(min(len(mark) - 1, len(text)), most, -1):
            if text.endswith(mark[:size]):
                most = size
                break
    return most


def _certain(text: str, size: int) -> int:
    """The first ``size`` letters without the white space at their end."""
    return max(len(text[:size].rstrip()), size - MOST_WHITE)
