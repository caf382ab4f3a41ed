"""From a list of tools to the grammar of an answer that calls them, in whatever words a model's family calls."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from stepwell.core.errors import UserError
from stepwell.core.grammar import JSON_STYLE, Grammar

MAX_TOOLS = 128


class CallShape(msgspec.Struct, frozen=True, kw_only=True):
    """How a family of models writes calls, as literal text around names and arguments.

    ``opening`` [``before`` call ``after``] ``between`` [``before`` call ``after``] … ``closing``.  A call is an object
    with the name and the arguments under two keys; or, if ``middle`` is given, the name, that text, and the arguments.
    """

    opening: str = ""
    before: str = ""
    middle: str | None = None
    after: str = ""
    between: str = ""
    closing: str = ""
    name_key: str = "name"
    arguments_key: str = "arguments"
    special: Mapping[str, int] = {}
    """Tokens that occur in those texts by name and are no text themselves."""


class Tool(msgspec.Struct, frozen=True):
    """A function that may be called; ``parameters`` is the JSON schema of its arguments."""

    name: str
    parameters: Mapping[str, Any] = msgspec.field(default_factory=lambda: {"type": "object"})


def calls_grammar(
    tools: Sequence[Tool], shape: CallShape, *, required: bool = True, several: bool = True, field: str = "tools"
) -> Grammar:
    """An answer that calls one of ``tools`` or, with ``several``, some of them, one after another.

    Not ``required``: it may be any text, and is held to the tools' schemas once it begins a call as ``shape`` says.
    Raises ``UserError`` for no tools, too many, or two of a name.
    """
    names = [tool.name for tool in tools]
    if not 0 < len(tools) <= MAX_TOOLS:
        raise UserError(f"must hold 1 to {MAX_TOOLS} tools, got {len(tools)}", field=field)
    if len(set(names)) < len(names):
        raise UserError("must have different names", field=field)
    literal = _Literals(shape.special)
    one = " | ".join(f"tool_{index}" for index in range(len(tools)))
    more = f"({literal(shape.between)} call)*" if several else ""
    first = f"({one}) {literal(shape.after)}"
    calls = f"{literal(shape.opening)}{literal(shape.before)} {first} {more} {literal(shape.closing)}"
    rules = [f"call: {literal(shape.before)} {first}"] if several else []
    rules += [f"tool_{index}: {_call(tool, shape, literal)}" for index, tool in enumerate(tools)]
    return Grammar("lark", "\n".join([*_start(calls, shape, literal, required, several), *rules]))


def _start(calls: str, shape: CallShape, literal: _Literals, required: bool, several: bool) -> list[str]:
    if required:
        return [f"start: {calls}"]
    mark = shape.opening or shape.before
    if not mark:
        # Without a mark an object is a call, if it comes first; text begins with anything else.
        return [f"start: TEXT | {calls}", r"TEXT: /([^{](?s:.*))?/"]
    if literal.begins_special(mark):
        return [f"start: TEXT ({calls} TEXT)*" if several else f"start: TEXT ({calls})?", r"TEXT: /(?s:.*)/"]
    rest = calls.removeprefix(literal(mark))
    start = f"start: (head {rest})* TEXT" if several else f"start: TEXT | head {rest}"
    return [start, f"head[lazy]: TEXT {literal(mark)}", r"TEXT: /(?s:.*)/"]


def _call(tool: Tool, shape: CallShape, literal: _Literals) -> str:
    if shape.middle is not None:
        return f"{json.dumps(tool.name)} {literal(shape.middle)} %json {_schema(tool.parameters)}"
    call = {
        "type": "object",
        "properties": {shape.name_key: {"const": tool.name}, shape.arguments_key: dict(tool.parameters)},
        "required": [shape.name_key, shape.arguments_key],
        "additionalProperties": False,
    }
    return f"%json {_schema(call)}"


def _schema(schema: Mapping[str, Any]) -> str:
    return json.dumps({**schema, "x-guidance": JSON_STYLE}, allow_nan=False)


class _Literals:
    """Text as Lark writes it; each piece is followed by a blank."""

    def __init__(self, special: Mapping[str, int]) -> None:
        self._special = special
        names = sorted(special, key=len, reverse=True)
        self._names = re.compile("(" + "|".join(map(re.escape, names)) + ")") if names else None

    def __call__(self, text: str) -> str:
        pieces = self._names.split(text) if self._names else [text]
        return "".join(self._piece(each) + " " for each in pieces if each)

    def begins_special(self, text: str) -> bool:
        return self._names is not None and self._names.match(text) is not None

    def _piece(self, text: str) -> str:
        return f"<[{self._special[text]}]>" if text in self._special else json.dumps(text)
