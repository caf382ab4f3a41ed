"""The rules for what stands in a row of a trace file, shared by all readers."""

from __future__ import annotations

import re
from decimal import ROUND_HALF_EVEN, Context, Decimal

import msgspec

from stepwell.core.errors import UserError
from stepwell.core.types import MAX_NAME, NS_PER_S

MOST_TOKENS = (1 << 31) - 1
MOST_NS = 1 << 61
"""Times beyond it (73 years) are a slip of the unit."""

_EXACT = Context(prec=200, rounding=ROUND_HALF_EVEN)
"""Holds every digit of what ``_SECONDS`` lets through."""


class JsonNumber(str):
    """A number with a fraction or exponent, as a file of JSON has it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


_json = msgspec.json.Decoder(float_hook=JsonNumber)

_SECONDS = re.compile(r"\d{1,12}(?:\.\d{1,40})?(?:[eE][+-]?\d{1,2})?", re.ASCII)


class RowError(UserError):
    """Why one row cannot be used, without file or line: the reader adds them."""


def tokens(text: str, column: str) -> int:
    """A count of tokens: decimal digits and nothing else (no sign, fraction, separator, ``NaN``)."""
    text = text.strip()
    if not text:
        raise RowError(f"{column} is blank")
    if not (text.isascii() and text.isdigit()):
        raise RowError(f"{column} must be a whole number of tokens, not {shown(text)}")
    return token_count(int(text) if len(text) <= 20 else MOST_TOKENS + 1, column)


def token_count(value: object, column: str) -> int:
    """The same for a number that a JSON parser already made."""
    if type(value) is not int or value < 0:
        raise RowError(f"{column} must be a whole number of tokens, not {shown(value)}")
    if value > MOST_TOKENS:
        raise RowError(f"{column} is more than {MOST_TOKENS} tokens")
    return value


def program_name(value: object, column: str) -> str:
    """The name of a program: text or a whole number, as traces write sessions."""
    name = str(value).strip() if type(value) in (str, int) else ""
    if not name:
        raise RowError(f"{column} must be text or a whole number, not {shown(value)}")
    if len(name) > MAX_NAME:
        raise RowError(f"{column} has more than {MAX_NAME} letters")
    return name


def json_row(line: str, columns: tuple[str, ...]) -> dict[str, object]:
    """The object that a line of JSON is, with all of ``columns``; fractional numbers stay the text that they are."""
    try:
        found: object = _json.decode(line)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RowError(f"not a JSON object: {error}") from None
    if not isinstance(found, dict):
        raise RowError(f"must be a JSON object, not {shown(found)}")
    for column in columns:
        if column not in found:
            raise RowError(f"column {column!r} is missing")
    return found


def hash_ids(ids: object, prompt_tokens: int, block: int, *, partial: bool) -> list[int]:
    """Hash ids of ``block`` prompt tokens each, or none.

    ``partial``: a last block that is not full must have one too; otherwise it may.
    """
    if not isinstance(ids, list):
        raise RowError(f"hash_ids must be a list, not {shown(ids)}")
    if not ids:
        return []
    for key in ids:
        if type(key) is not int or key < 0:
            raise RowError(f"hash_ids must be whole, non-negative numbers, not {shown(key)}")
    blocks, full = -(-prompt_tokens // block), prompt_tokens // block
    if len(ids) != blocks and (partial or len(ids) != full):
        raise RowError(f"{len(ids)} hash_ids for input_length {prompt_tokens}, which has {blocks} blocks of {block}")
    return ids


def seconds(text: str, column: str) -> int:
    """Nanoseconds of a decimal number of seconds, exactly; digits beyond the ninth round half to even."""
    text = text.strip()
    if not text:
        raise RowError(f"{column} is blank")
    if not _SECONDS.fullmatch(text):
        raise RowError(f"{column} must be a non-negative number of seconds, not {shown(text)}")
    whole, _, fraction = text.partition(".")
    if len(fraction) <= 9 and text.replace(".", "").isdigit():
        value = int(whole) * NS_PER_S + int(fraction.ljust(9, "0"))
    else:
        value = int(_EXACT.to_integral_value(_EXACT.multiply(Decimal(text), Decimal(NS_PER_S))))
    if value > MOST_NS:
        raise RowError(f"{column} is too far away: {shown(text)} s")
    return value


def shown(value: object) -> str:
    """A value from a file as an error may quote it."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def columns_of(line: str) -> list[str]:
    return [name.strip() for name in line.split(",")]


def positions(header: str, needed: tuple[str, ...]) -> tuple[list[int], int]:
    """Where the needed columns are, and how many columns there are; others are ignored."""
    names = columns_of(header)
    for name in needed:
        if name not in names:
            raise RowError(f"column {name!r} is missing; the header has {', '.join(names)}")
        if names.count(name) > 1:
            raise RowError(f"column {name!r} appears {names.count(name)} times")
    return [names.index(name) for name in needed], len(names)


def fields(line: str, count: int) -> list[str]:
    """The fields of a CSV line.  Quotes are not part of any format read here."""
    parts = line.split(",")
    if len(parts) != count:
        hint = " (a thousands separator?)" if len(parts) > count else ""
        raise RowError(f"{len(parts)} fields where the header has {count}{hint}")
    return parts
