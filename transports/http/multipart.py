"""Forms with a file in them (``multipart/form-data``), read as they come: nothing is held but a field or a piece.

No sockets in here: bytes go in, and what became complete comes out.
"""

from __future__ import annotations

from typing import Any

import msgspec
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from stepwell.transports.errors import RequestError

MOST_FIELD = 4096
"""Bytes of a field that is no file."""
MOST_PARTS = 32
"""Fields and files of a form."""
MOST_NAME = 255
"""Letters of a file's name."""


class Field(msgspec.Struct, frozen=True):
    """A field that is no file."""

    name: str
    value: str


class FileBegins(msgspec.Struct, frozen=True):
    """A file; what follows is in it, up to ``FileEnds``."""

    name: str
    filename: str


class FileEnds(msgspec.Struct, frozen=True):
    """The end of it."""


Item = Field | FileBegins | bytes | FileEnds


class Form:
    """``feed`` it what comes, in order.  Raises ``RequestError`` for what is no form, or has no end."""

    def __init__(self, content_type: str) -> None:
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary", b"")
        if kind != b"multipart/form-data" or not boundary:
            raise RequestError("must be multipart/form-data with a boundary", field="Content-Type")
        self._items: list[Item] = []
        self._header = [bytearray(), bytearray()]
        self._headers: dict[str, bytes] = {}
        self._value = bytearray()
        self._name = ""
        self._in_file = False
        self._parts = 0
        self._whole = False
        callbacks: dict[str, Any] = {
            "on_part_begin": self._part_begins,
            "on_header_field": lambda data, start, end: self._header[0].extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._header[1].extend(data[start:end]),
            "on_header_end": self._header_ends,
            "on_headers_finished": self._content_begins,
            "on_part_data": self._content,
            "on_part_end": self._part_ends,
            "on_end": self._ends,
        }
        try:
            self._parser = MultipartParser(boundary, callbacks)  # type: ignore[arg-type]
        except FormParserError as error:
            raise _malformed(error) from None

    def feed(self, data: bytes) -> list[Item]:
        """What these bytes made complete."""
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise _malformed(error) from None
        items, self._items = self._items, []
        return items

    def end(self) -> None:
        """Nothing more comes."""
        if not self._whole:
            raise RequestError("the form has no end", code="invalid_form")

    # ------------------------------------------------------------------------------------------- what the parser finds

    def _part_begins(self) -> None:
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise RequestError(f"a form has at most {MOST_PARTS} parts here", code="invalid_form")
        self._headers, self._value = {}, bytearray()

    def _header_ends(self) -> None:
        name, value = self._header
        self._headers[name.decode("latin-1").lower()] = bytes(value)
        self._header = [bytearray(), bytearray()]

    def _content_begins(self) -> None:
        _, options = parse_options_header(self._headers.get("content-disposition", b"").decode("latin-1"))
        self._name = _text(options.get(b"name", b""))
        self._in_file = b"filename" in options
        if self._in_file:
            self._items.append(FileBegins(self._name, _text(options[b"filename"])[:MOST_NAME]))

    def _content(self, data: bytes, start: int, end: int) -> None:
        if self._in_file:
            self._items.append(data[start:end])
            return
        self._value += data[start:end]
        if len(self._value) > MOST_FIELD:
            raise RequestError(f"takes more than {MOST_FIELD} bytes", field=self._name[:64])

    def _part_ends(self) -> None:
        self._items.append(FileEnds() if self._in_file else Field(self._name, _text(bytes(self._value))))

    def _ends(self) -> None:
        self._whole = True


def _text(data: bytes) -> str:
    """Without what would be trouble in a header or a log."""
    return "".join(letter for letter in data.decode("utf-8", "replace") if letter.isprintable())


def _malformed(error: Exception) -> RequestError:
    return RequestError(f"the body is no well-formed form: {error}", code="invalid_form")
