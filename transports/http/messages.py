"""The chat that a client sends, as the chat template takes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Raw

from stepwell.core.errors import UserError
from stepwell.transports.chat import Message
from stepwell.transports.http.decoding import SMALL, decode, items_of
from stepwell.transports.http.requests import ANYTHING, MAX_MESSAGES, MAX_TOOL_CALLS, MESSAGES, ChatMessage


def chat_messages(messages: Raw) -> list[ChatMessage]:
    """They are counted before they are made."""
    if memoryview(messages).nbytes > SMALL:
        items_of(messages, MAX_MESSAGES, "messages")
    return decode(messages, MESSAGES, "messages")


def messages_of(messages: Sequence[ChatMessage], field: str = "messages") -> list[Message]:
    """The chat as the template takes it: content as text, null only where nothing was said."""
    if sum(memoryview(each.tool_calls).nbytes for each in messages) > MAX_TOOL_CALLS + 4 * len(messages):
        raise UserError(f"tool calls take more than {MAX_TOOL_CALLS >> 10} KiB", field=field)
    return [_message(each, f"{field}[{index}]") for index, each in enumerate(messages)]


def _message(message: ChatMessage, field: str) -> Message:
    content = message.content
    if isinstance(content, list):
        for index, part in enumerate(content):
            if part.type not in ("text", "input_text", "output_text") or part.text is None:
                raise UserError(
                    f"only parts of text are understood, not {part.type!r}", field=f"{field}.content[{index}]"
                )
        content = "".join(part.text or "" for part in content)
    if content is None:
        if message.role != "assistant":
            raise UserError("must be text, or a list of parts of text", field=f"{field}.content")
        content = ""
    made: dict[str, Any] = {"role": message.role, "content": content}
    for name in ("name", "tool_call_id"):
        if getattr(message, name) is not None:
            made[name] = getattr(message, name)
    reasoning = message.reasoning if message.reasoning_content is None else message.reasoning_content
    if reasoning is not None:
        made["reasoning_content"] = reasoning
    calls = decode(message.tool_calls, ANYTHING, f"{field}.tool_calls")
    if calls is not None:
        made["tool_calls"] = calls
    return made
