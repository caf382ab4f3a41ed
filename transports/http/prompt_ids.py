"""``prompt`` of a text to complete, as token ids."""

from __future__ import annotations

import re

from msgspec import Raw

from stepwell.core.errors import UserError
from stepwell.core.execution import PromptIds
from stepwell.transports.errors import too_long
from stepwell.transports.http.decoding import decode, items_of
from stepwell.transports.http.requests import IDS, TEXT
from stepwell.transports.service import Service

_BEGIN = re.compile(rb'(")|\[\s*(.)', re.DOTALL)


async def prompts_of(prompt: Raw, service: Service) -> list[PromptIds]:
    """A text, token ids, or a list of either, as the token ids of each prompt."""
    field = "prompt"
    begin = _begin(prompt)
    if begin == b"[":
        raise UserError("must be text, token ids, or a list of either, and not empty", field=field)
    prompts = {field: prompt}
    if begin in (b'["', b"[["):
        items = items_of(prompt, service.limits.max_choices, field)
        prompts = {f"{field}[{index}]": each for index, each in enumerate(items)}

    def make() -> list[PromptIds]:
        return [_prompt(each, service, where) for where, each in prompts.items()]

    return await service.aside.unless_short(memoryview(prompt).nbytes, make)


def _begin(raw: Raw) -> bytes:
    """What a value begins with: ``"`` for a text, ``[`` for an empty list, ``["``, ``[[`` or ``[1`` for lists."""
    match = _BEGIN.match(memoryview(raw))
    if match is None:
        return b""
    return match[1] or b"[" + match[2].strip(b"]")


def _prompt(raw: Raw, service: Service, field: str) -> PromptIds:
    begin = _begin(raw)
    if begin.startswith(b'"'):
        return service.prompts.text(decode(raw, TEXT, field), field)
    if begin == b"[":
        return service.prompts.check_length([], field)
    if not re.fullmatch(rb"\[[-0-9]", begin):
        raise UserError("must be text or a list of token ids", field=field)
    count = bytes(raw).count(b",") + 1  # before anything is made of each
    if count >= service.context:
        raise too_long(count, service.context, field)
    return service.prompts.ids(decode(raw, IDS, field), field)
