"""The items of a conversation: what clients send, what is stored of it, and the chat that it makes.

Messages, function calls and their outputs, and what the model thought; other kinds are refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from stepwell.core.errors import UserError
from stepwell.transports.chat import Message
from stepwell.transports.http.decoding import SMALL, decode, items_of
from stepwell.transports.http.requests import MAX_MESSAGES, Part
from stepwell.transports.ids import fresh

Json = dict[str, Any]
PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
"""The kinds that are understood, and what their ids begin with."""
NEEDED = {"function_call": ("call_id", "name"), "function_call_output": ("call_id", "output")}
TEXTS = ("text", "input_text", "output_text", "reasoning_text", "summary_text")


class InputItem(msgspec.Struct, gc=False):
    """One of ``input``; which fields count is for ``type`` to say."""

    type: str = "message"
    role: str = "user"
    content: str | list[Part] | None = None
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None


INPUT: msgspec.json.Decoder[str | list[InputItem] | None] = msgspec.json.Decoder(str | list[InputItem] | None)
STORED: msgspec.json.Decoder[list[InputItem]] = msgspec.json.Decoder(list[InputItem])


def new_id(prefix: str) -> str:
    """Of a response or an item."""
    return fresh(f"{prefix}_")


def items_of_input(raw: Raw) -> list[InputItem]:
    """``input`` as items, each of a kind that is understood; they are counted before they are made."""
    if memoryview(raw).nbytes > SMALL and memoryview(raw)[0] == ord("["):
        items_of(raw, MAX_MESSAGES, "input")
    said = decode(raw, INPUT, "input")
    if not said:
        raise UserError("must be text or a list of items, and not empty", field="input")
    if isinstance(said, str):
        return [InputItem(content=said)]
    for index, item in enumerate(said):
        _check(item, f"input[{index}]")
    return said


def _check(item: InputItem, field: str) -> None:
    if item.type not in PREFIXES:
        known = ", ".join(PREFIXES)
        raise UserError(f"{item.type[:64]!r} is not understood; these are: {known}", field=f"{field}.type")
    for needed in NEEDED.get(item.type, ()):
        if getattr(item, needed) is None:
            raise UserError("is required", field=f"{field}.{needed}")
    if item.type == "message" and item.content is None and item.role != "assistant":
        raise UserError("must be text, or a list of parts of text", field=f"{field}.content")
    for name in ("content", "output"):
        parts = getattr(item, name)
        for index, part in enumerate(parts if isinstance(parts, list) else ()):
            if part.type not in TEXTS or part.text is None:
                where = f"{field}.{name}[{index}]"
                raise UserError(f"only parts of text are understood, not {part.type[:64]!r}", field=where)


def stored(items: Iterable[InputItem]) -> bytes:
    """As ``GET /v1/responses/{id}/input_items`` tells them: each with an id, contents as parts."""
    return msgspec.json.encode([_stored(item) for item in items])


def _stored(item: InputItem) -> Json:
    made: Json = {"id": item.id or new_id(PREFIXES[item.type]), "type": item.type, "status": "completed"}
    if item.type == "message":
        kind = "output_text" if item.role == "assistant" else "input_text"
        return {**made, "role": item.role, "content": _parts(item.content, kind)}
    if item.type == "reasoning":
        return {**made, "summary": [], "content": _parts(item.content, "reasoning_text")}
    made["call_id"] = item.call_id
    if item.type == "function_call":
        return {**made, "name": item.name, "arguments": item.arguments or ""}
    return {**made, "output": item.output if isinstance(item.output, str) else _parts(item.output, "input_text")}


def _parts(content: str | list[Part] | None, kind: str) -> list[Json]:
    texts = [part.text or "" for part in content] if isinstance(content, list) else [content or ""]
    extra: Json = {"annotations": []} if kind == "output_text" else {}
    return [{"type": kind, "text": text, **extra} for text in texts]


# ------------------------------------------------------------------------------------------------ a chat


def chat_of(items: Sequence[InputItem]) -> list[Message]:
    """The chat that items make.  Calls beside each other, and the words before them, are one message of the assistant;
    what it thought before that is its ``reasoning_content``."""
    made: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    thought = ""
    for item in items:
        if item.type == "reasoning":
            thought += _text(item.content)
            continue
        if item.type == "function_call":
            names[item.call_id or ""] = item.name or ""
            if not made or made[-1]["role"] != "assistant" or thought:
                made.append({"role": "assistant", "content": ""})
            made[-1].setdefault("tool_calls", []).append(_call(item))
        elif item.type == "function_call_output":
            called = {"tool_call_id": item.call_id, "name": names.get(item.call_id or "", "")}
            made.append({"role": "tool", "content": _text(item.output), **called})
        else:
            made.append({"role": "system" if item.role == "developer" else item.role, "content": _text(item.content)})
        if thought and made[-1]["role"] == "assistant":
            made[-1]["reasoning_content"] = thought
        thought = ""
    return list(made)


def _call(item: InputItem) -> Json:
    function = {"name": item.name, "arguments": item.arguments or ""}
    return {"id": item.call_id, "type": "function", "function": function}


def _text(content: str | list[Part] | None) -> str:
    return "".join(part.text or "" for part in content) if isinstance(content, list) else content or ""
