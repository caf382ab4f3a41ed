"""A chat, and who makes a prompt of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

Message = Mapping[str, Any]
"""One of a chat: ``role``, ``content`` as text, and whatever else the client sent."""


class ChatTemplate(Protocol):
    """Messages to the token ids of a prompt that asks for the next answer.  It may block: it is called in a thread."""

    def __call__(self, messages: Sequence[Message], arguments: Mapping[str, Any]) -> list[int]:
        """``arguments`` are the client's ``chat_template_kwargs``; raises ``UserError`` if the template refuses."""
        ...
