"""Prompts on their way in: text, messages or ids become token ids that the model can take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stepwell.core.errors import UserError
from stepwell.core.execution import PromptIds
from stepwell.core.protocols import Tokenizer
from stepwell.transports.aside import Aside
from stepwell.transports.chat import ChatTemplate, Message
from stepwell.transports.errors import too_long


class Prompts:
    """Of one model.  ``encode`` makes a text to complete a prompt, None: the tokenizer does; ``context`` in tokens."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        encode: Callable[[str], list[int]] | None,
        template: ChatTemplate,
        context: int,
        aside: Aside,
        *,
        quick: bool = False,
    ) -> None:
        """``quick``: short chats are made at once, and not in a thread."""
        self._encode = encode or tokenizer.encode
        self._template = template
        self._context = context
        self._aside = aside
        self._quick = quick
        self._vocab_size = tokenizer.vocab_size
        longest = max([len(tokenizer.token_bytes(id)) for id in range(tokenizer.vocab_size)], default=1)
        self._most_bytes = context * max(longest, 1)

    def text(self, text: str, field: str) -> PromptIds:
        """The token ids of ``text``; raises ``RequestError`` if it is provably too long before anything is done.

        Call it by ``aside.unless_short``, for all texts of a request at once: it may take microseconds a letter.
        """
        if len(text) > self._most_bytes:
            raise too_long(None, self._context, field)
        return self.check_length(self._encode(text), field)

    async def tokens(self, messages: Sequence[Message], arguments: Mapping[str, Any], field: str) -> list[int]:
        """The same as ``chat``, however many they are and whatever their number is for."""
        return await self._aside(lambda: self._template(messages, arguments))

    async def chat(self, messages: Sequence[Message], arguments: Mapping[str, Any], field: str) -> PromptIds:
        """The token ids of a chat that asks for its next answer."""
        size = sum(len(str(message.get("content") or "")) for message in messages)
        if size > self._most_bytes:
            raise too_long(None, self._context, field)

        def make() -> PromptIds:
            return self.check_length(self._template(messages, arguments), field)

        return await (self._aside.unless_short(size, make) if self._quick else self._aside(make))

    def check_length(self, ids: list[int], field: str) -> PromptIds:
        """Neither empty nor too long.  Looks at none of them: the tokenizer knows its own tokens."""
        if not ids:
            raise UserError("must hold at least one token", field=field)
        if len(ids) >= self._context:
            raise too_long(len(ids), self._context, field)
        return PromptIds(ids, self._vocab_size)

    def ids(self, ids: list[int], field: str) -> PromptIds:
        """Ids that a client sent: the same, and of this model's vocabulary."""
        made = self.check_length(ids, field)
        if not 0 <= min(ids) <= max(ids) < made.below:
            raise UserError(f"token ids are 0 to {made.below - 1}", field=field)
        return made
