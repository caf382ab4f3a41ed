"""Tools that a client offers, and its choice among them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Raw

from stepwell.core.errors import UserError
from stepwell.core.parsing import AnswerReader
from stepwell.transports.chat import Message
from stepwell.transports.http.decoding import decode
from stepwell.transports.parsing.forced import forced_call, forced_calls
from stepwell.transports.parsing.parsers import MakeReading, Parsers

MOST_TOOLS = 128
MOST_DEPTH = 48
"""Of lists and objects in the description of a tool's parameters."""

FunctionName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.:-]{1,128}\Z")]


class Function(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What may be called."""

    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """A JSON schema."""
    strict: bool | None = None


class Tool(msgspec.Struct, kw_only=True):
    """A tool as OpenAI's chats have it."""

    type: Literal["function"]
    function: Function


class ToolName(msgspec.Struct, kw_only=True):
    name: str


class ToolChoice(msgspec.Struct, kw_only=True):
    """The one tool that is to be called."""

    type: Literal["function"]
    function: ToolName


TOOLS: msgspec.json.Decoder[list[Tool] | None] = msgspec.json.Decoder(
    Annotated[list[Tool], msgspec.Meta(max_length=MOST_TOOLS)] | None
)
CHOICE: msgspec.json.Decoder[str | ToolChoice | None] = msgspec.json.Decoder(str | ToolChoice | None)


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """The tools of one request.  ``choice``: ``auto``, ``required``, or the name of the one."""

    tools: Sequence[Mapping[str, Any]]
    """As chat templates take them."""
    choice: str = "auto"
    one_call: bool = False
    """At most one call an answer."""

    @property
    def forced(self) -> Callable[[], AnswerReader] | None:
        """What reads answers that are held to calls; None if they are not."""
        if self.choice == "auto":
            return None
        return forced_calls if self.choice == "required" else lambda: forced_call(self.choice)

    @property
    def strict(self) -> bool:
        """Whether calls that the model makes of its own accord are held to a tool's schema, too."""
        return self.choice == "auto" and any(each["function"].get("strict") for each in self.tools)

    @property
    def schema(self) -> Mapping[str, Any] | None:
        """Of the whole answer as JSON, where it is held to calls."""
        if self.choice == "auto":
            return None
        if self.choice != "required":
            named = next(each["function"] for each in self.tools if each["function"]["name"] == self.choice)
            return _parameters(named)
        return calls_schema([each["function"] for each in self.tools], 1 if self.one_call else None)

    def reading(self, parsers: Parsers) -> MakeReading | None:
        """Who reads the answer; raises ``UserError`` if nobody can."""
        if self.forced is None and parsers.tools is None:
            raise UserError(
                "this model's chat template does not say how it calls tools; model.tool_parser names one", field="tools"
            )
        return parsers.chats(tools=True, one_call=self.one_call, forced=self.forced)

    def told(self, messages: Sequence[Message], parsers: Parsers) -> Sequence[Message]:
        """The chat, with a system message about the tools if the chat template tells nothing of them."""
        text = parsers.instructions(self.tools)
        if not text:
            return messages
        if messages and messages[0]["role"] in ("system", "developer"):
            first = {**messages[0], "content": f"{messages[0]['content']}\n\n{text}"}
            return [first, *messages[1:]]
        return [{"role": "system", "content": text}, *messages]


def offer_of(tools: Raw, choice: Raw, parallel: bool | None) -> Offer | None:
    """What is offered; None if there are no tools, or none may be called."""
    offered = decode(tools, TOOLS, "tools") or []
    chosen = _choice(decode(choice, CHOICE, "tool_choice"), [each.function.name for each in offered])
    if not offered or chosen == "none":
        return None
    made = []
    for index, each in enumerate(offered):
        check_depth(each.function.parameters, f"tools[{index}].function.parameters")
        made.append({"type": "function", "function": msgspec.to_builtins(each.function)})
    return Offer(tools=made, choice=chosen, one_call=parallel is False)


def _choice(asked: str | ToolChoice | None, names: Sequence[str]) -> str:
    if isinstance(asked, ToolChoice):
        if asked.function.name not in names:
            raise UserError(f"there is no tool {asked.function.name[:100]!r}", field="tool_choice.function.name")
        if asked.function.name in ("auto", "required", "none"):
            raise UserError("cannot be chosen by this name", field="tool_choice.function.name")
        return asked.function.name
    if asked not in (None, "none", "auto", "required"):
        raise UserError("must be none, auto, required, or name a function", field="tool_choice")
    if asked == "required" and not names:
        raise UserError("required needs tools to choose from", field="tool_choice")
    return asked or "auto"


def calls_schema(functions: Sequence[Mapping[str, Any]], most: int | None = None) -> dict[str, Any]:
    """Of a list of calls, with the definitions of all tools at its root, where their references look for them."""
    definitions: dict[str, Any] = {}
    kinds = []
    for function in functions:
        parameters = dict(_parameters(function))
        for key in ("$defs", "definitions"):
            for name, schema in parameters.pop(key, {}).items():
                if definitions.setdefault(key, {}).setdefault(name, schema) != schema:
                    raise UserError(f"two tools define {name[:100]!r} in two ways", field="tools")
        properties = {"name": {"const": function["name"]}, "parameters": parameters}
        kinds.append(
            {
                "type": "object",
                "properties": properties,
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
        )
    made = {"type": "array", "items": {"anyOf": kinds}, "minItems": 1, **definitions}
    return made if most is None else {**made, "maxItems": most}


def _parameters(function: Mapping[str, Any]) -> Mapping[str, Any]:
    return function.get("parameters") or {"type": "object", "properties": {}}


def check_depth(value: Any, field: str) -> None:
    """Raise ``UserError`` if it is nested too deep; no deeper than that is looked."""
    level = [value]
    for _ in range(MOST_DEPTH + 1):
        level = [inner for each in level for inner in _inside(each)]
        if not level:
            return
    raise UserError(f"is nested more than {MOST_DEPTH} deep", field=field)


def _inside(value: Any) -> Sequence[Any]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [each for each in inner if isinstance(each, dict | list)]
