"""What the plugins of the families have in common."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec


class NoOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """There is nothing to choose."""


def described(tools: Sequence[Mapping[str, Any]]) -> str:
    """The functions as JSON, one a line."""
    return "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
