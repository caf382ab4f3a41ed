"""What an answer has to look like, as data: a grammar's source, within bounds.  A backend holds answers to it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from stepwell.core.errors import UserError

Kind = Literal["json", "regex", "choice", "lark"]

MAX_DEPTH = 64
"""Brackets within brackets: of a schema, a regular expression or a grammar."""
MAX_CHOICES = 1024
"""Of a ``choice``."""

JSON_STYLE = {"whitespace_flexible": True, "whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,32}"}
"""What stands between the parts of JSON, in llguidance's words: a model that only indents would never end."""

_TEXTS = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""One that has no end goes to the end: nothing is looked at twice, whatever a client wrote."""
_ESCAPED = re.compile(r"\\.", re.DOTALL)
_BRACKETS = re.compile(r"[\[{(]|[\]})]")


class Grammar(msgspec.Struct, frozen=True, array_like=True):
    """``source`` is, by ``kind``: a JSON schema as JSON text; a regular expression (Rust's syntax, the whole answer
    matches it); a JSON list of the texts of which one is the answer; a grammar in llguidance's variant of Lark."""

    kind: Kind
    source: str

    @property
    def depth(self) -> int:
        """Of brackets; for all but JSON no less than it is."""
        bare = (_TEXTS if self.kind in ("json", "choice") else _ESCAPED).sub("", self.source)
        level = deepest = 0
        for bracket in _BRACKETS.findall(bare):
            level = level + 1 if bracket in "[{(" else max(level - 1, 0)
            deepest = max(deepest, level)
        return deepest


ANY_OBJECT = Grammar("json", '{"type":"object"}')
"""Any JSON object (``json_object``)."""


def choice_of(texts: Sequence[str], field: str) -> Grammar:
    """One of ``texts``.  Raises ``UserError`` for none, too many, or one that says nothing."""
    if not 0 < len(texts) <= MAX_CHOICES:
        raise UserError(f"must hold 1 to {MAX_CHOICES} texts, got {len(texts)}", field=field)
    if not all(texts):
        raise UserError("must not hold an empty text", field=field)
    return Grammar("choice", msgspec.json.encode(texts).decode())


def check_bounds(grammar: Grammar, most_bytes: int, field: str) -> None:
    """Raise ``UserError`` if it is too long or nested too deep; a few ns a byte."""
    if not grammar.source:
        raise UserError("must not be empty", field=field)
    try:
        size = len(grammar.source.encode())
    except UnicodeEncodeError:
        raise UserError("holds half of a surrogate pair, which is no character", field=field) from None
    if size > most_bytes:
        raise UserError(f"takes {size} bytes, and {most_bytes} are allowed", field=field)
    if grammar.depth > MAX_DEPTH:
        raise UserError(f"is nested more than {MAX_DEPTH} deep", field=field)
