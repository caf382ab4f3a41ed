"""From a list of tools to the grammar of an answer that may call them, in the words of the model's own family.

The answer is any text (or what it is held to anyway) until it begins a call; from there on it keeps to the tools.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from stepwell.core.grammar import JSON_STYLE, Grammar
from stepwell.core.parsing import CallShape

ANYTHING: Mapping[str, Any] = MappingProxyType({"type": "object"})


class Tool(msgspec.Struct, frozen=True):
    """A function that may be called; ``parameters`` is the JSON schema of its arguments."""

    name: str
    parameters: Mapping[str, Any] = msgspec.field(default_factory=lambda: ANYTHING)


class Writing(msgspec.Struct, frozen=True, kw_only=True):
    """How a model writes what its parsers read."""

    shape: CallShape
    marks: Sequence[str] = ()
    """What begins a call for them, or is part of one."""
    thoughts: Sequence[str] = ()
    """The marks around its reasoning, which comes first; none if it does not reason."""
    special: Mapping[str, int] = {}
    """Those of all these that are tokens, and no text themselves."""


def calls_grammar(
    tools: Sequence[Tool], writing: Writing, *, several: bool = True, answer: Mapping[str, Any] | None = None
) -> Grammar:
    """An answer that may call one of ``tools`` or, with ``several``, some of them, one after another.

    ``answer``: what does not call any is JSON of that schema, and calls stand alone.
    """
    shape, literal = writing.shape, _Literals(writing.special)
    one = " | ".join(f"tool_{index}" for index in range(len(tools)))
    call = f"({one}) {literal(shape.after)}"
    more = f"({literal(shape.between)}{literal(shape.before)}{call})* " if several else ""
    calls = f"{literal((shape.opening + shape.before).removeprefix(shape.mark))}{call}{more}{literal(shape.closing)}"
    first, rules = _thought(writing, literal)
    if answer is not None:
        rules += [
            f"start: {first}WHITE (answer | {literal(shape.mark)}{calls})",
            f"answer: %json {_schema(answer)}",
            _WHITE,
        ]
    else:
        rules += _among_text(writing, literal, first, calls, several)
    return Grammar(
        "lark", "\n".join([*rules, *(f"tool_{at}: {_call(each, shape, literal)}" for at, each in enumerate(tools))])
    )


_WHITE = r"WHITE: /[\x20\x0A\x0D\x09]{0,32}/"


def _among_text(writing: Writing, literal: _Literals, first: str, calls: str, several: bool) -> list[str]:
    """``calls`` are what follows the mark, if there is one."""
    mark, unless = writing.shape.mark, _without(writing.marks)
    if not mark:
        # An object or a list is a call, if it comes first; text begins with anything else.
        text = rf"TEXT: /\s*[^\s{{\[](?s:.*)/{unless}"
        return [f"start: {first}WHITE | {first}TEXT | {first}WHITE {calls}", text, _WHITE]
    if mark in writing.special:
        again = "*" if several else "?"
        return [f"start: {first}TEXT ({literal(mark)}{calls}TEXT){again}", f"TEXT: /(?s:.*)/{unless}"]
    start = f"start: {first}(head {calls})* TEXT" if several else f"start: {first}TEXT | {first}head {calls}"
    return [start, f"head[lazy]: TEXT {literal(mark)}", r"TEXT: /(?s:.*)/"]


def _thought(writing: Writing, literal: _Literals) -> tuple[str, list[str]]:
    """What comes before everything else, and its rules.  Whether the prompt began it is not known here."""
    if not writing.thoughts:
        return "", []
    begin, end = writing.thoughts
    # One that began as JSON does could not be told from an answer that does.
    mark = writing.shape.mark
    rules = [r"THOUGHT: /\s*([^\s{\[](?s:.*))?/" + _without([mark] if mark else [])]
    if end not in writing.special:
        return "thought? ", [*rules, f"thought[lazy]: THOUGHT {literal(end)}"]
    opened = f"({literal(begin)})? " if begin in writing.special else ""
    return "thought? ", [*rules, f"thought: {opened}THOUGHT {literal(end)}"]


def _without(marks: Sequence[str]) -> str:
    """A token that is no text may be spelled in letters, too, and parsers see no difference."""
    spelled = "|".join(re.escape(mark).replace("/", r"\/") for mark in marks)
    return f" & ~/(?s:.*)({spelled})(?s:.*)/" if spelled else ""


def _call(tool: Tool, shape: CallShape, literal: _Literals) -> str:
    if shape.middle is not None:
        return f"{json.dumps(tool.name)} {literal(shape.middle)}%json {_schema(tool.parameters)}"
    parameters = dict(tool.parameters)
    hoisted: dict[str, Any] = {
        name: parameters.pop(name) for name in ("$defs", "definitions", "x-guidance") if name in parameters
    }
    call: dict[str, Any] = {
        "type": "object",
        "properties": {shape.name_key: {"const": tool.name}, shape.arguments_key: parameters},
        "required": [shape.name_key, shape.arguments_key],
        "additionalProperties": False,
        **hoisted,  # where references look for them
    }
    return f"%json {_schema(call)}"


def _schema(schema: Mapping[str, Any]) -> str:
    asked = schema.get("x-guidance")
    style = {**(asked if isinstance(asked, dict) else {}), **JSON_STYLE}
    return json.dumps({**schema, "x-guidance": style}, allow_nan=False)


class _Literals:
    """Text as Lark writes it; each piece is followed by a blank."""

    def __init__(self, special: Mapping[str, int]) -> None:
        self._special = special
        names = sorted(special, key=len, reverse=True)
        self._names = re.compile("(" + "|".join(map(re.escape, names)) + ")") if names else None

    def __call__(self, text: str) -> str:
        pieces = self._names.split(text) if self._names else [text]
        return "".join(self._piece(each) + " " for each in pieces if each)

    def _piece(self, text: str) -> str:
        return f"<[{self._special[text]}]>" if text in self._special else json.dumps(text)
