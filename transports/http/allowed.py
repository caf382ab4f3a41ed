"""What may stand at a place of a body that is one of a few words: its decoder names only the wrong one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import inspect

_STEP = re.compile(r"\.(\w+)|\[[^\]]*\]")


def words_at(kind: Any, path: str) -> list[str]:
    """Those of a place such as ``.tools[0].type``; empty if it is no such place."""
    found = [inspect.type_info(kind)]
    for step in _STEP.finditer(path):
        found = [inner for each in found for inner in _inside(each, step[1])]
    return [str(value) for each in found for one in _members(each) for value in _values(one)]


def _inside(kind: Any, name: str | None) -> Iterator[Any]:
    for each in _members(kind):
        if name is None:
            yield from (getattr(each, inner) for inner in ("item_type", "value_type") if hasattr(each, inner))
        elif isinstance(each, inspect.StructType):
            yield from (field.type for field in each.fields if field.encode_name == name)


def _members(kind: Any) -> Sequence[Any]:
    """Of a union, without what only describes."""
    if isinstance(kind, inspect.Metadata):
        return _members(kind.type)
    return kind.types if isinstance(kind, inspect.UnionType) else (kind,)


def _values(kind: Any) -> Sequence[Any]:
    if isinstance(kind, inspect.LiteralType):
        return kind.values
    return [each.value for each in kind.cls] if isinstance(kind, inspect.EnumType) else ()
