"""Anthropic's Messages as clients send them, and the chat and the tools that they mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Raw

from stepwell.core.errors import UserError
from stepwell.transports.chat import Message
from stepwell.transports.http.decoding import SMALL, decode, items_of
from stepwell.transports.http.requests import ANYTHING, MAX_MESSAGES, NOTHING, Sampled, StopTexts
from stepwell.transports.http.tools import MOST_TOOLS, Function, FunctionName, Offer, check_depth


class Block(msgspec.Struct, gc=False):
    """A part of a message; which fields count depends on its ``type``.  ``cache_control`` is ignored, as are others."""

    type: str
    text: str | None = None
    id: str | None = None
    name: str | None = None
    input: Raw = NOTHING
    tool_use_id: str | None = None
    content: Raw = NOTHING
    is_error: bool | None = None
    thinking: str | None = None


class Turn(msgspec.Struct, gc=False):
    """A message."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class AnthropicTool(msgspec.Struct, kw_only=True):
    name: FunctionName
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class AnthropicChoice(msgspec.Struct, kw_only=True):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct, kw_only=True):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None


class Who(msgspec.Struct, kw_only=True):
    user_id: Annotated[str, msgspec.Meta(max_length=1024)] | None = None


class CountRequest(Sampled, kw_only=True):
    """``POST /v1/messages/count_tokens``, and what it has in common with a request for an answer."""

    messages: Raw
    """A list of ``Turn``."""
    system: str | list[Block] | None = None
    tools: Raw = NOTHING
    """A list of ``AnthropicTool``."""
    tool_choice: AnthropicChoice | None = None
    thinking: Thinking | None = None


class MessagesRequest(CountRequest, kw_only=True):
    """``POST /v1/messages``."""

    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]
    stop_sequences: StopTexts | None = None
    metadata: Who | None = None


COUNT = msgspec.json.Decoder(CountRequest)
MESSAGES = msgspec.json.Decoder(MessagesRequest)
TURNS = msgspec.json.Decoder(Annotated[list[Turn], msgspec.Meta(min_length=1)])
TOOLS: msgspec.json.Decoder[list[AnthropicTool] | None] = msgspec.json.Decoder(
    Annotated[list[AnthropicTool], msgspec.Meta(max_length=MOST_TOOLS)] | None
)
CONTENT: msgspec.json.Decoder[str | list[Block] | None] = msgspec.json.Decoder(str | list[Block] | None)


# ------------------------------------------------------------------------------------------------ the chat


def chat_of(asked: CountRequest) -> list[Message]:
    """As chat templates take it: results of tools are messages of their own."""
    if memoryview(asked.messages).nbytes > SMALL:
        items_of(asked.messages, MAX_MESSAGES, "messages")
    turns = decode(asked.messages, TURNS, "messages")
    made: list[Message] = []
    if asked.system:
        made.append({"role": "system", "content": _text_of(asked.system, "system")})
    names: dict[str, str] = {}
    for index, turn in enumerate(turns):
        field = f"messages[{index}].content"
        if isinstance(turn.content, str):
            made.append({"role": turn.role, "content": turn.content})
        elif turn.role == "assistant":
            made.append(_assistant(turn.content, field, names))
        else:
            made += _user(turn.role, turn.content, field, names)
    if turns[-1].role == "assistant":
        raise UserError("the last one must be the user's: an answer that was begun is not continued", field="messages")
    return made


def _assistant(blocks: Sequence[Block], field: str, names: dict[str, str]) -> Message:
    texts, thoughts, calls = [], [], []
    for index, block in enumerate(blocks):
        at = f"{field}[{index}]"
        if block.type == "text":
            texts.append(_needed(block.text, f"{at}.text"))
        elif block.type == "thinking":
            thoughts.append(_needed(block.thinking, f"{at}.thinking"))
        elif block.type == "tool_use":
            id, name = _needed(block.id, f"{at}.id"), _needed(block.name, f"{at}.name")
            names[id] = name
            arguments = decode(block.input, ANYTHING, f"{at}.input")
            if not isinstance(arguments, dict):
                raise UserError("must be an object", field=f"{at}.input")
            calls.append({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
        elif block.type != "redacted_thinking":
            raise UserError(f"an assistant says no block of type {block.type[:60]!r} here", field=f"{at}.type")
    made: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        made["reasoning_content"] = "".join(thoughts)
    if calls:
        made["tool_calls"] = calls
    return made


def _user(role: str, blocks: Sequence[Block], field: str, names: dict[str, str]) -> list[Message]:
    made: list[Message] = []
    texts: list[str] = []
    for index, block in enumerate(blocks):
        at = f"{field}[{index}]"
        if block.type == "text":
            texts.append(_needed(block.text, f"{at}.text"))
        elif block.type == "tool_result":
            id = _needed(block.tool_use_id, f"{at}.tool_use_id")
            content = decode(block.content, CONTENT, f"{at}.content")
            told = {"tool_call_id": id, **({"name": names[id]} if id in names else {})}
            made.append({"role": "tool", "content": _text_of(content or "", f"{at}.content"), **told})
        else:
            raise UserError(f"blocks of type {block.type[:60]!r} are not understood here", field=f"{at}.type")
    if texts or not made:
        made.append({"role": role, "content": "".join(texts)})
    return made


def _text_of(content: str | Sequence[Block], field: str) -> str:
    if isinstance(content, str):
        return content
    for index, block in enumerate(content):
        if block.type != "text":
            raise UserError(f"only text is understood here, not {block.type[:60]!r}", field=f"{field}[{index}].type")
    return "".join(_needed(block.text, f"{field}[{index}].text") for index, block in enumerate(content))


def _needed(value: str | None, field: str) -> str:
    if value is None:
        raise UserError("is required", field=field)
    return value


# ------------------------------------------------------------------------------------------------ tools, thinking


def offer_of(asked: CountRequest) -> Offer | None:
    """What is offered; None if there are no tools, or none may be called."""
    offered = decode(asked.tools, TOOLS, "tools") or []
    choice = asked.tool_choice or AnthropicChoice(type="auto")
    if choice.type == "tool" and choice.name not in [each.name for each in offered]:
        raise UserError(f"there is no tool {str(choice.name)[:100]!r}", field="tool_choice.name")
    if choice.type == "any" and not offered:
        raise UserError("any needs tools to choose from", field="tool_choice")
    made = []
    for index, each in enumerate(offered):
        if each.type not in (None, "custom"):
            raise UserError(f"there is no tool of the type {each.type[:60]!r} here", field=f"tools[{index}].type")
        check_depth(each.input_schema, f"tools[{index}].input_schema")
        function = Function(
            name=each.name, description=each.description, parameters=each.input_schema, strict=each.strict
        )
        made.append({"type": "function", "function": msgspec.to_builtins(function)})
    if not made or choice.type == "none":
        return None
    chosen = {"any": "required", "tool": choice.name or ""}.get(choice.type, "auto")
    return Offer(tools=made, choice=chosen, one_call=bool(choice.disable_parallel_tool_use))


def arguments_of(asked: CountRequest, offer: Offer | None) -> dict[str, Any]:
    """For the chat template."""
    made: dict[str, Any] = {}
    if asked.thinking is not None:
        made["enable_thinking"] = asked.thinking.type != "disabled"
    if offer is not None:
        made["tools"] = offer.tools
    return made
