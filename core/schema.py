"""From loose tables (TOML, options, a generator's settings) to typed structs, with errors that a person can act on.

``convert`` is what configuration, plugin options and anything else written by hand goes through: it names the path of
what is wrong, what was expected there, where it came from, and for an unknown key the nearest known one.
"""

from __future__ import annotations

import difflib
import functools
import math
import re
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from stepwell.core.errors import UserError

T = TypeVar("T")

SourceOf = Callable[[str], str]
"""Says where the value at a path came from, such as ``scenario.toml``; empty if that is not worth saying."""

_AT = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<path>.*)`)?$", re.DOTALL)
_WORDS = {"`object`": "a table", "`array`": "a list", "`null`": "nothing"}
_RANGE = re.compile(r"Expected `(?P<kind>\w+)` (?P<bound>[<>]=?) (?P<limit>\S+)$")
_LIMIT_64 = 1 << 63


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that ``name`` was most likely meant to be; empty if none is close."""
    choices = sorted(known)
    folded = {choice.lower().replace("_", "-"): choice for choice in reversed(choices)}
    hits = difflib.get_close_matches(name.lower().replace("_", "-"), list(folded), n=1, cutoff=0.6)
    return folded[hits[0]] if hits else ""


def unknown(what: str, name: str, known: Iterable[str], *, field: str, source: str = "") -> UserError:
    """The error for a name that is not known: with its source, the nearest match and everything allowed."""
    choices = sorted(known)
    guess = nearest(name, choices)
    hint = f"; did you mean {guess!r}?" if guess else "."
    allowed = ", ".join(choices) or "none"
    return UserError(f"unknown {what} {name!r}{_from(source)}{hint} Allowed: {allowed}", field=field)


def convert(data: object, kind: type[T], *, field: str = "", source_of: SourceOf = lambda path: "") -> T:
    """``data`` as a ``kind``; every mistake is a ``UserError`` whose field is a path that begins with ``field``."""
    check_plain(data, field=field, source_of=source_of)
    check_keys(data, kind, field=field, source_of=source_of)
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise _explained(str(error), data, kind, field, source_of) from None


def check_keys(data: object, kind: Any, *, field: str = "", source_of: SourceOf = lambda path: "") -> None:
    """Refuse keys that the struct ``kind`` (or the structs inside it) does not have."""
    struct = struct_in(kind)
    if isinstance(data, Mapping) and struct is not None:
        known = fields_of(struct)
        for key, value in data.items():
            path = join(field, str(key))
            if key not in known:
                raise unknown("key", str(key), known, field=path, source=source_of(path))
            check_keys(value, known[key], field=path, source_of=source_of)
    elif isinstance(data, list | tuple):
        element = element_in(kind)
        for index, value in enumerate(data):
            check_keys(value, element, field=f"{field}[{index}]", source_of=source_of)


def check_plain(data: object, *, field: str = "", source_of: SourceOf = lambda path: "") -> None:
    """Only values that every format we write can hold: text, 64-bit integers, finite numbers, lists, tables."""
    problem = ""
    if isinstance(data, Mapping):
        for key, value in data.items():
            path = join(field, str(key))
            if not isinstance(key, str):
                raise UserError(f"keys are text, not {key!r}{_from(source_of(path))}", field=path)
            check_plain(value, field=path, source_of=source_of)
    elif isinstance(data, list | tuple):
        for index, value in enumerate(data):
            check_plain(value, field=f"{field}[{index}]", source_of=source_of)
    elif isinstance(data, str):
        if any("\ud800" <= letter <= "\udfff" for letter in data):
            problem = "is not valid Unicode text"
    elif data is None or isinstance(data, bool | msgspec.Struct):
        pass
    elif isinstance(data, int):
        if not -_LIMIT_64 <= data < _LIMIT_64:
            problem = f"{data} does not fit 64 bits"
    elif isinstance(data, float):
        if not math.isfinite(data):
            problem = f"must be a finite number, not {data}"
    else:
        problem = f"a {type(data).__name__} is not allowed here: text, numbers, booleans, lists and tables are"
    if problem:
        raise UserError(problem + _from(source_of(field)), field=field)


def join(parent: str, key: str) -> str:
    return f"{parent}.{key}" if parent else key


# ------------------------------------------------------------------------------------------------ looking at types


@functools.cache
def fields_of(struct: type[msgspec.Struct]) -> Mapping[str, Any]:
    """Encoded name and type of every field.  Kept, as msgspec takes 1 ms to find them out."""
    return {info.encode_name: info.type for info in msgspec.structs.fields(struct)}


def bare(kind: Any) -> Any:
    """The type without ``Annotated``."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def struct_in(kind: Any) -> type[msgspec.Struct] | None:
    """The struct that ``kind`` is, alone or in a union with other things; ``None`` if there is not exactly one."""
    kind = bare(kind)
    if get_origin(kind) in (Union, types.UnionType):
        found = [struct for struct in map(struct_in, get_args(kind)) if struct is not None]
        return found[0] if len(found) == 1 else None
    return kind if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else None


def element_in(kind: Any) -> Any:
    """The type of the elements of a list or tuple type; ``object`` if unknown."""
    kind = bare(kind)
    arguments = get_args(kind)
    return arguments[0] if get_origin(kind) in (list, tuple) and arguments else object


def type_at(kind: Any, path: str) -> Any:
    """The declared type at a path such as ``scheduler.depth`` or ``classes[0].rank``; ``object`` where all is free."""
    for key, index in re.findall(r"([^.\[\]]+)|\[(\d+|\.\.\.)\]", path):
        struct = struct_in(kind)
        if index:
            kind = element_in(kind)
        elif struct is not None:
            kind = fields_of(struct).get(key, object)
        else:
            return object
    return bare(kind)


def choices_in(kind: Any) -> tuple[str, ...]:
    """The values of a ``Literal`` of strings; empty for any other type."""
    values = get_args(bare(kind)) if get_origin(bare(kind)) is Literal else ()
    return tuple(value for value in values if isinstance(value, str))


# ------------------------------------------------------------------------------------------------ wording


def _explained(text: str, data: object, kind: Any, field: str, source_of: SourceOf) -> UserError:
    match = _AT.match(text)
    what, inner = (match["what"], match["path"] or "") if match else (text, "")
    inner = inner.removeprefix(".")
    path = field + inner if inner.startswith("[") else join(field, inner) if inner else field
    value = _value_at(data, inner)
    choices = choices_in(type_at(kind, inner))
    bound = _RANGE.search(what)
    if choices and what.startswith("Invalid enum"):
        says = f"expected one of {', '.join(map(repr, choices))}, got {value!r}"
    elif bound:
        says = f"must be {bound['bound']} {bound['limit'].removesuffix('.0')}, got {value!r}"
    elif "sha256:" in what:  # and not what was given: it may be the secret itself
        says = "must be the digest of a key, sha256: and 64 hexadecimal digits; `stepwell keys hash` makes it"
    elif "matching regex" in what:
        says = f"{value!r} does not match {what.partition('regex ')[2]}"
    elif "missing required field" in what:
        path, says = join(path, what.rpartition("`")[0].rpartition("`")[2]), "is missing"
    else:
        says = what[:1].lower() + what[1:]
        for word, plain in _WORDS.items():
            says = says.replace(word, plain)
        says = says.replace("`", "")
        if isinstance(value, str | int | float):
            says += f" {value!r}" if ", got " in says else f", got {value!r}"
    return UserError(says + _from(source_of(path)), field=path)


def _value_at(data: object, path: str) -> object:
    for key, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path):
        if index and isinstance(data, list | tuple) and int(index) < len(data):
            data = data[int(index)]
        elif isinstance(data, Mapping) and key in data:
            data = data[key]
        else:
            return None
    return data


def _from(source: str) -> str:
    return f" (from {source})" if source else ""
