"""The lines of a batch's file: read in slices, and looked at before any of them is run."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from hashlib import blake2b
from typing import Annotated, Any

import msgspec
from msgspec import Raw

from stepwell.transports.errors import MAX_MESSAGE, RequestError
from stepwell.transports.http.decoding import decode
from stepwell.transports.store import files
from stepwell.transports.store.database import Database
from stepwell.transports.store.files import FileRow

MOST_ERRORS = 100
"""Of a file that is not as it should be; what comes after them is not looked at."""
MOST_ID = 512
"""Letters of a ``custom_id``."""


class Line(msgspec.Struct, frozen=True):
    """``place`` counts from 0 those that are not blank; ``number`` is what an editor shows."""

    place: int
    number: int
    data: bytes | None
    """None: it was too long to be held."""


class Asked(msgspec.Struct, frozen=True):
    """What a line holds."""

    custom_id: Annotated[str, msgspec.Meta(min_length=1, max_length=MOST_ID)]
    method: str
    url: str
    body: Raw


_ASKED = msgspec.json.Decoder(Asked)


async def slices(database: Database, row: FileRow, most: int) -> AsyncGenerator[list[Line]]:
    """The lines of a file, those of one piece at a time; none is longer than ``most`` bytes."""
    cutter, place = Cutter(most), 0
    while place >= 0:
        data, place = await database.read(files.piece(row, place))
        yield cutter.cut(data)
    yield cutter.end()


class Cutter:
    """Makes lines of pieces.  Holds less than a line and a piece."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._rest = b""
        self._too_long = False
        self._place = self._number = 0

    def cut(self, piece: bytes) -> list[Line]:
        """The lines that are complete now."""
        *whole, rest = piece.split(b"\n")
        if whole:
            whole[0] = self._rest + whole[0]
            self._rest = rest
        else:
            self._rest += rest
        found = [line for each in whole if (line := self._line(each)) is not None]
        if len(self._rest) > self._most:
            self._rest, self._too_long = b"", True
        return found

    def end(self) -> list[Line]:
        """The last one, if it has no line break."""
        last = self._line(self._rest)
        self._rest = b""
        return [] if last is None else [last]

    def _line(self, data: bytes) -> Line | None:
        self._number += 1
        too_long, self._too_long = self._too_long or len(data) > self._most, False
        data = data.removeprefix(b"\xef\xbb\xbf") if self._number == 1 else data
        data = data.strip(b" \t\r")
        if not data and not too_long:
            return None
        self._place += 1
        return Line(self._place - 1, self._number, None if too_long else data)


class Checker:
    """What must be right of every line before one is run; what is in its body is found when it is run."""

    def __init__(self, endpoint: str, most_lines: int) -> None:
        self.errors: list[dict[str, Any]] = []
        self.lines = 0
        self.done = False
        """Nothing more need be looked at."""
        self._endpoint = endpoint
        self._most_lines = most_lines
        self._seen: set[bytes] = set()

    def look(self, lines: list[Line]) -> None:
        """At the next of them."""
        for line in lines:
            if self.done:
                return
            self.lines += 1
            if self.lines > self._most_lines:
                self._wrong("too_many_lines", f"a batch has at most {self._most_lines} lines here", line)
                self.done = True
                return
            try:
                self._check(line)
            except RequestError as error:
                code = "invalid_json_line" if error.code == "invalid_json" else error.code
                self._wrong(code, str(error), line, error.field)

    def end(self) -> list[dict[str, Any]]:
        """All errors."""
        if not self.lines:
            self._wrong("empty_file", "there is no line in the file", None)
        return self.errors

    def _check(self, line: Line) -> None:
        asked = asked_by(line)
        if asked.method != "POST":
            raise RequestError(f"must be POST, not {asked.method[:16]!r}", field="method", code="invalid_method")
        if asked.url != self._endpoint:
            message = f"must be {self._endpoint}, as the batch says, not {asked.url[:64]!r}"
            raise RequestError(message, field="url", code="mismatched_url")
        if bytes(memoryview(asked.body)[:1]) != b"{":
            raise RequestError("must be an object", field="body")
        digest = blake2b(asked.custom_id.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if digest in self._seen:
            message = f"{asked.custom_id[:64]!r} is the custom_id of an earlier line"
            raise RequestError(message, field="custom_id", code="duplicate_custom_id")
        self._seen.add(digest)

    def _wrong(self, code: str, message: str, line: Line | None, param: str = "") -> None:
        number = line.number if line is not None else None
        self.errors.append({"code": code, "line": number, "message": message[:MAX_MESSAGE], "param": param or None})
        self.done = len(self.errors) >= MOST_ERRORS


def asked_by(line: Line) -> Asked:
    """What it holds.  Raises ``RequestError``."""
    if line.data is None:
        raise RequestError("the line is longer than a request may be", status=413, code="line_too_long")
    return decode(line.data, _ASKED)
