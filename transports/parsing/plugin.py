"""What the plugins of the families have in common."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from stepwell.core.parsing import ToolCall


class NoOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """There is nothing to choose."""


def as_object(call: ToolCall, arguments: str = "arguments") -> str:
    """``{"name": …, "arguments": …}``."""
    name = json.dumps(call.name, ensure_ascii=False)
    return f'{{"name": {name}, "{arguments}": {call.arguments}}}'


def as_list(calls: Sequence[ToolCall]) -> str:
    return f"[{', '.join(map(as_object, calls))}]"


def described(tools: Sequence[Mapping[str, Any]]) -> str:
    """The functions as JSON, one a line."""
    return "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
