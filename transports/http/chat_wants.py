"""What a chat asks for that a text to complete does not: tools, reasoning, arguments of the template."""

from __future__ import annotations

from typing import Any

import msgspec

from stepwell.core.errors import UserError
from stepwell.core.grammar import Grammar
from stepwell.transports.http.formats import Form, with_form
from stepwell.transports.http.requests import ChatRequest
from stepwell.transports.http.tools import Offer
from stepwell.transports.service import Service
from stepwell.transports.wants import Wants


def read_as(wants: Wants, offer: Offer | None, service: Service, salt: str | None = None) -> Wants:
    """With who reads the answer, and with what holds it to calls of tools where they are required."""
    reading = service.parsers.chats() if offer is None else offer.reading(service.parsers)
    wants = msgspec.structs.replace(wants, reading=reading, cache_salt=salt or "")
    held = offer.schema if offer is not None else None
    if held is None:
        return wants
    if wants.sampling.grammar is not None:
        raise UserError("cannot be together with a tool_choice that answers are held to", field=wants.grammar_field)
    form = Form(Grammar("json", msgspec.json.encode(held).decode()), "tool_choice")
    return msgspec.structs.replace(wants, sampling=with_form(wants.sampling, form), grammar_field=form.field)


def template_arguments(asked: ChatRequest, offer: Offer | None) -> dict[str, Any]:
    """For the chat template.  What the client says in ``chat_template_kwargs`` goes before what follows from others."""
    made: dict[str, Any] = {}
    if asked.reasoning_effort is not None:
        made = {"reasoning_effort": asked.reasoning_effort, "enable_thinking": asked.reasoning_effort != "none"}
    made |= asked.chat_template_kwargs or {}
    if offer is not None:
        made["tools"] = offer.tools
    return made
