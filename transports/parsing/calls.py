"""Calls as JSON objects, ``{"name": …, "arguments": {…}}``: alone, in a list, or one after another."""

from __future__ import annotations

import msgspec

from stepwell.core.parsing import CallArguments, CallBegan, CallEnded
from stepwell.transports.parsing.json_text import Extent
from stepwell.transports.parsing.source import NoCall, Reads, Source

ARGUMENTS = ("arguments", "parameters")
KEYS = (*ARGUMENTS, "name", "id", "type")
"""An object with any other key is no call: a model may answer in JSON, too."""
MOST_NAME = 256
"""Letters of a name or an id."""

_string = msgspec.json.Decoder(str).decode
_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def calls(source: Source) -> Reads[None]:
    """One or more objects, in brackets with commas, or with nothing, commas or semicolons between them.

    Raises ``NoCall`` if the first is none.  What comes after the last one stays unread.
    """
    listed = yield from source.takes("[")
    yield from source.white()
    yield from call(source)
    while True:
        source.drop()
        try:
            if not (yield from _another(source, listed)):
                return
            yield from source.white()
            yield from call(source)
        except NoCall:
            source.at = 0
            return


def _another(source: Source, listed: bool) -> Reads[bool]:
    """Whether one more follows.  The bracket that ends a list is read."""
    yield from source.white()
    if listed:
        if (yield from source.takes("]")):
            return False
        yield from source.expect(",")
        return True
    for mark in (";", ","):
        if (yield from source.takes(mark)):
            return True
    if not (yield from source.sees("{")):
        raise NoCall
    return True


def call(source: Source) -> Reads[None]:
    """One object.  Raises ``NoCall`` as long as nothing was said of it; what comes after its arguments, and does not
    go on as an object does, stays unread."""
    head = _Head()
    try:
        yield from _members(source, head)
    except NoCall:
        if not head.said:
            raise
        source.at = 0


class _Head:
    def __init__(self) -> None:
        self.name = ""
        self.id = ""
        self.early = ""
        """Arguments that came before the name."""
        self.said = False
        """The whole call was."""


def _members(source: Source, head: _Head) -> Reads[None]:
    yield from source.expect("{")
    first = True
    while True:
        yield from source.white()
        if (yield from source.takes("}")):
            break
        if not first:
            yield from source.expect(",")
            yield from source.white()
        first = False
        if not (yield from source.sees('"')):
            raise NoCall
        key = _text((yield from source.value()))
        yield from source.white()
        yield from source.expect(":")
        yield from source.white()
        if key not in KEYS:
            raise NoCall
        if key in ARGUMENTS and head.name and not head.said and (yield from source.sees("{")):
            head.said = True
            if not (yield from arguments(source, head.name, head.id)):
                return
        else:
            value = yield from source.value()
            if not head.said:
                _note(source, head, key, value)
    if not head.said:
        if not head.name:
            raise NoCall
        _say(source, head, "{}")


def arguments(source: Source, name: str, id: str = "") -> Reads[bool]:
    """Say that a call begins, and give its arguments as they come: a JSON object.  False if the text ends before it."""
    source.drop()
    source.out.append(CallBegan(name, id))
    extent = Extent()
    while (yield from source.more()):
        end = extent.feed(source.text, 0)
        source.at = len(source.text) if end < 0 else end
        source.out.append(CallArguments(source.text[: source.at]))
        source.drop()
        if end >= 0:
            source.out.append(CallEnded())
            return True
    source.out.append(CallEnded(complete=False))
    return False


def _note(source: Source, head: _Head, key: str, value: str) -> None:
    """A member that is not given as it comes."""
    if key == "name":
        head.name = _text(value)
        if not 0 < len(head.name) <= MOST_NAME:
            raise NoCall
        if head.early:
            _say(source, head, head.early)
    elif key == "id":
        head.id = _text(value)[:MOST_NAME]
    elif key in ARGUMENTS:
        head.early = _early(value)
        if head.name:
            _say(source, head, head.early)


def _say(source: Source, head: _Head, given: str) -> None:
    head.said = True
    source.drop()
    source.out += (CallBegan(head.name, head.id), CallArguments(given), CallEnded())


def _text(value: str) -> str:
    try:
        return _string(value)
    except (msgspec.DecodeError, UnicodeEncodeError):
        raise NoCall from None


def _early(value: str) -> str:
    """Arguments that were waited for: an object, its text in a string as some models write it, or null for none."""
    if value == "null":
        return "{}"
    text = _text(value).strip() if value.startswith('"') else value
    try:
        _object(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        raise NoCall from None
    return text
