"""The same struct for a reader: what is read as bytes at first (``msgspec.Raw``) as the type that it holds.

A schema can be made of it, which a default of bytes does not allow.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from functools import cache, reduce
from operator import or_
from typing import Annotated, Any

import msgspec

from stepwell.transports.http.admin import Pinned
from stepwell.transports.http.anthropic_requests import AnthropicTool, CountRequest, MessagesRequest, Turn
from stepwell.transports.http.requests import ChatMessage, ChatRequest, CompletionRequest, TokenId
from stepwell.transports.http.tokenizing import DetokenizeRequest, TokenizeRequest
from stepwell.transports.http.tools import MOST_TOOLS, Tool, ToolChoice

_Messages = Annotated[list[ChatMessage], msgspec.Meta(min_length=1)]
_Tools = Annotated[list[Tool], msgspec.Meta(max_length=MOST_TOOLS)]
_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Ids = Annotated[list[TokenId], msgspec.Meta(min_length=1)]
_Texts = Annotated[list[_Text], msgspec.Meta(min_length=1)]
_Turns = Annotated[list[Turn], msgspec.Meta(min_length=1)]
_Anthropic: Mapping[str, Any] = {
    "messages": _Turns,
    "tools": Annotated[list[AnthropicTool], msgspec.Meta(max_length=MOST_TOOLS)],
}

HELD: Mapping[type, Mapping[str, Any]] = {
    ChatRequest: {"messages": _Messages, "tools": _Tools, "tool_choice": str | ToolChoice},
    CompletionRequest: {"prompt": _Text | _Ids},
    Pinned: {"messages": _Messages},
    CountRequest: _Anthropic,
    MessagesRequest: _Anthropic,
    TokenizeRequest: {"prompt": str, "messages": _Messages, "tools": _Tools},
    DetokenizeRequest: {"tokens": list[TokenId]},
}
"""What fields that are bytes hold; of those that are not named here, anything."""


@cache
def described(struct: type) -> Any:
    """``struct`` with what ``HELD`` says of it, and of the structs within."""
    hints = typing.get_type_hints(struct, include_extras=True)
    held = HELD.get(struct, {})
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for each in msgspec.structs.fields(struct):
        kind = _plain(held.get(each.name, hints[each.name]))
        if each.required:
            fields.append((each.name, kind))
        elif isinstance(each.default, msgspec.Raw):
            fields.append((each.name, kind | None, None))
        elif each.default is not msgspec.NODEFAULT:
            fields.append((each.name, kind, each.default))
        else:
            fields.append((each.name, kind, msgspec.field(default_factory=each.default_factory)))
    config = struct.__struct_config__  # type: ignore[attr-defined]
    return msgspec.defstruct(
        struct.__name__,
        fields,
        kw_only=True,
        namespace={"__doc__": (struct.__doc__ or "").replace("``", "`")},
        forbid_unknown_fields=config.forbid_unknown_fields,
        array_like=config.array_like,
        tag=config.tag,
        tag_field=config.tag_field,
    )


def _plain(kind: Any) -> Any:
    if kind in (msgspec.Raw, object):
        return Any
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return described(kind)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return Annotated[(_plain(inner[0]), *kind.__metadata__)]
    if origin in (typing.Union, types.UnionType):
        return reduce(or_, map(_plain, inner))
    if origin in (list, dict, tuple):
        return origin[tuple(_plain(each) for each in inner)]
    return kind
