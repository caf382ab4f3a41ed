"""What a plugin says of itself, read for people: docstring, promises, and its options with types, defaults and remarks.

A remark on an option is, in this order: ``msgspec.Meta(description=…)``, the string below the field, the comment at
the end of its line.
"""

from __future__ import annotations

import ast
import inspect
import io
import textwrap
import tokenize
import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypedDict, Union, get_args, get_origin

import msgspec

_BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


class OptionText(TypedDict):
    """The fields of ``catalogue.OptionInfo``."""

    name: str
    type: str
    default: str
    doc: str
    required: bool


def doc_of(plugin: type[Any]) -> str:
    """The class's own docstring, unindented; empty if it has none."""
    return inspect.cleandoc(plugin.__doc__ or "") if "__doc__" in vars(plugin) else ""


def promises_of(plugin: object) -> Mapping[str, bool]:
    """What a policy promises, by name; empty for a plugin that promises nothing."""
    promises = getattr(plugin, "promises", None)
    return msgspec.structs.asdict(promises) if isinstance(promises, msgspec.Struct) else {}


def describe_options(options: type[msgspec.Struct]) -> list[OptionText]:
    """Every option in words."""
    remarks = _remarks(options)
    listed: list[OptionText] = []
    for field in msgspec.structs.fields(options):
        default = "" if field.required else _default(field)
        doc = _meta_text(field.type) or remarks.get(field.name, "")
        listed.append(
            OptionText(
                name=field.encode_name, type=type_text(field.type), default=default, doc=doc, required=field.required
            )
        )
    return listed


def type_text(kind: Any) -> str:
    """A type as a person would write it in documentation: ``int >= 1``, ``swap | recompute``, ``list of int``."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        bounds = [
            f"{sign} {_bound(getattr(meta, name))}"
            for meta in arguments[1:]
            if isinstance(meta, msgspec.Meta)
            for name, sign in _BOUNDS.items()
            if getattr(meta, name) is not None
        ]
        return " ".join([type_text(arguments[0]), ", ".join(bounds)]).strip()
    if origin is Literal:
        return " | ".join(map(str, arguments))
    if origin in (Union, types.UnionType):
        return " | ".join(map(type_text, arguments))
    if origin in (list, tuple, set, frozenset) and arguments:
        return f"list of {type_text(arguments[0])}"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "table"
    if isinstance(kind, type):
        return (
            "nothing"
            if kind in (type(None), msgspec.UnsetType)
            else "table"
            if issubclass(kind, dict | msgspec.Struct)
            else kind.__name__
        )
    return str(kind)


def _bound(value: float) -> str:
    """The same whether written as an integer or not: equal types share one object, that of whoever came first."""
    return str(int(value) if float(value).is_integer() else value)


def _default(field: msgspec.structs.FieldInfo) -> str:
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    if isinstance(value, str):
        return value or "''"
    if value is msgspec.UNSET:
        return "not set"
    return str(msgspec.to_builtins(value))


def _meta_text(kind: Any) -> str:
    for meta in get_args(kind)[1:] if get_origin(kind) is Annotated else ():
        if isinstance(meta, msgspec.Meta) and meta.description:
            return meta.description
    return ""


def _remarks(options: type[Any]) -> dict[str, str]:
    """Remarks in the source, by field, base classes first; nothing where there is no source to read."""
    found: dict[str, str] = {}
    for owner in reversed(options.__mro__):
        if owner in (object, msgspec.Struct):
            continue
        try:
            source = textwrap.dedent(inspect.getsource(owner))
            body = ast.parse(source).body[0]
        except (OSError, TypeError, SyntaxError, IndexError):
            continue
        if isinstance(body, ast.ClassDef):
            found.update(_in_class(body, source))
    return found


def _in_class(body: ast.ClassDef, source: str) -> dict[str, str]:
    comments = {
        token.start[0]: token.string.lstrip("#").strip()
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    found: dict[str, str] = {}
    for node, after in zip(body.body, [*body.body[1:], None], strict=True):
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
            continue
        text = comments.get(node.end_lineno or 0, "")
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
            text = " ".join(after.value.value.split())
        if text:
            found[node.target.id] = text
    return found
