"""Calls in a whole text, found the plain way: by the library that reads JSON, and by looking for the marks.

Only for texts whose calls are well formed; what is not well formed it does not know.
"""

from __future__ import annotations

import json
import re

Calls = list[tuple[str, str]]
"""Name and arguments, as they are written."""

_DECODER = json.JSONDecoder()


def object_at(text: str, at: int) -> tuple[str, int] | None:
    """The JSON object that begins there, as it is written, and where it ends."""
    try:
        value, end = _DECODER.raw_decode(text, at)
    except ValueError:
        return None
    return (text[at:end], end) if isinstance(value, dict) else None


def call_of(written: str) -> tuple[str, str] | None:
    """What an object calls: its arguments are cut out of it as they stand there."""
    value = json.loads(written)
    key = next((each for each in ("arguments", "parameters") if each in value), "")
    if not isinstance(value.get("name"), str) or not isinstance(value.get(key), dict):
        return None
    for found in re.finditer(rf'"{key}"\s*:\s*(?={{)', written):
        arguments = object_at(written, found.end())
        if arguments and json.loads(arguments[0]) == value[key] and written[arguments[1] :].strip() == "}":
            return value["name"], arguments[0]
    return None


def calls_between(text: str, begin: str, end: str) -> Calls:
    """All objects between marks, in lists or not.  ``end`` empty: to the end of the text."""
    found: Calls = []
    for section in text.split(begin)[1:]:
        at, body = 0, section.split(end)[0] if end else section
        while (at := body.find("{", at)) >= 0:
            written = object_at(body, at)
            call = call_of(written[0]) if written else None
            if written is None or call is None:
                break
            found.append(call)
            at = written[1]
    return found


def deepseek_calls(text: str) -> Calls:
    """Each after its separator: the name, and a block of JSON."""
    found: Calls = []
    for section in text.split("<｜tool▁sep｜>")[1:]:
        name, _, block = section.partition("\n")
        written = object_at(block, block.find("{"))
        assert written is not None
        found.append((name, written[0]))
    return found


NAIVE = {
    "hermes": lambda text: calls_between(text, "<tool_call>", "</tool_call>"),
    "smollm2": lambda text: calls_between(text, "<tool_call>", "</tool_call>"),
    "mistral": lambda text: calls_between(text, "[TOOL_CALLS]", ""),
    "llama3": lambda text: calls_between(text, "<|python_tag|>", ""),
    "deepseek": deepseek_calls,
}
