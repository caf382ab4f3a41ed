"""Tools as Responses have them, flat where chats nest; and what an answer's text says, as its items."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Raw

from stepwell.core.errors import UserError
from stepwell.core.parsing import CallBegan, CallEnded, Content, Said
from stepwell.transports.http.decoding import decode
from stepwell.transports.http.tools import MOST_TOOLS, FunctionName, Offer, offer_of
from stepwell.transports.responses.answer import Answer, Json


class ToolParam(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A function that may be called; there are no other tools here."""

    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoiceParam(msgspec.Struct, kw_only=True):
    """The one that is to be called."""

    type: Literal["function"]
    name: str


TOOLS: msgspec.json.Decoder[list[ToolParam] | None] = msgspec.json.Decoder(
    Annotated[list[ToolParam], msgspec.Meta(max_length=MOST_TOOLS)] | None
)
CHOICE: msgspec.json.Decoder[str | ToolChoiceParam | None] = msgspec.json.Decoder(str | ToolChoiceParam | None)
_encode = msgspec.json.encode


class Tools(msgspec.Struct, frozen=True):
    """What may be called, and how the response object tells of it."""

    offer: Offer | None
    told: Sequence[Json]
    choice: str | Json


def tools_of(tools: Raw, choice: Raw, parallel: bool | None) -> Tools:
    """Raises ``UserError`` with the field that is wrong."""
    asked, chosen = decode(tools, TOOLS, "tools") or [], decode(choice, CHOICE, "tool_choice")
    if isinstance(chosen, ToolChoiceParam) and chosen.name not in [each.name for each in asked]:
        raise UserError(f"there is no tool {chosen.name[:100]!r}", field="tool_choice.name")
    nested = [{"type": "function", "function": _function(each)} for each in asked]
    named = {"type": "function", "function": {"name": chosen.name}} if isinstance(chosen, ToolChoiceParam) else chosen
    offer = offer_of(Raw(_encode(nested)), Raw(_encode(named)), parallel)
    told = [{"parameters": None, "strict": None, **msgspec.to_builtins(each)} for each in asked]
    return Tools(offer, told, msgspec.to_builtins(chosen) if chosen is not None else "auto")


def _function(tool: ToolParam) -> Json:
    made: Json = msgspec.to_builtins(tool)
    del made["type"]
    return made


def tell(answer: Answer, said: Sequence[Said], rows: Sequence[Json] = ()) -> None:
    """Put what was said into items: each kind has its own, in the order in which the model came to them.  ``rows``
    are the log-probabilities of all of it, and those of the text's tokens stay."""
    for each in said:
        if isinstance(each, CallBegan):
            answer.close()
            answer.open("function_call", each.name, each.id)
        elif isinstance(each, CallEnded):
            answer.close(each.complete)
        else:
            content = isinstance(each, Content)
            kind = answer.items[-1].type if answer.items and answer.items[-1].status == "in_progress" else ""
            wanted = "message" if content else "function_call" if kind == "function_call" else "reasoning"
            if kind != wanted:
                answer.close()
                answer.open(wanted)
            answer.say(each.text, rows if content else ())
            rows = () if content else rows
