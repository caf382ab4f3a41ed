"""What a chat asks for that a text to complete does not: tools, reasoning, arguments of the template."""

from __future__ import annotations

from typing import Any

import msgspec

from stepwell.core.errors import UserError
from stepwell.core.grammar import Grammar, check_bounds
from stepwell.transports.http.formats import Form, with_form
from stepwell.transports.http.requests import ChatRequest
from stepwell.transports.http.tools import Offer
from stepwell.transports.service import Service
from stepwell.transports.tool_grammar import ANYTHING, Tool, calls_grammar
from stepwell.transports.wants import Wants


def read_as(wants: Wants, offer: Offer | None, service: Service, salt: str | None = None) -> Wants:
    """With who reads the answer, and with what holds it to calls of tools where they are required, or strict."""
    reading = service.parsers.chats() if offer is None else offer.reading(service.parsers)
    wants = msgspec.structs.replace(wants, reading=reading, cache_salt=salt or "")
    form = _form(wants, offer, service) if offer is not None else None
    if form is None:
        return wants
    return msgspec.structs.replace(wants, sampling=with_form(wants.sampling, form), grammar_field=form.field)


def _form(wants: Wants, offer: Offer, service: Service) -> Form | None:
    """What tools hold the answer to; None: nothing that it is not held to anyway."""
    asked, schema = wants.sampling.grammar, offer.schema
    if schema is not None:
        if asked is not None:
            raise UserError("cannot be together with a tool_choice that answers are held to", field=wants.grammar_field)
        return Form(Grammar("json", msgspec.json.encode(schema).decode()), "tool_choice")
    if not offer.strict and (asked is None or asked.kind != "json"):
        return None
    if asked is not None and asked.kind != "json":
        raise UserError("cannot be together with a tool that is strict", field=wants.grammar_field)
    writing = service.parsers.writing
    if writing is None and not offer.strict:
        return None
    if writing is None:
        raise UserError("this model's calls cannot be held to a schema: leave strict out", field="tools")
    answer = None
    if asked is not None:
        check_bounds(asked, service.config.grammar.source_kib << 10, wants.grammar_field)
        answer = _schema_of(asked, wants.grammar_field)
    functions = [each["function"] for each in offer.tools]
    tools = [
        Tool(each["name"], each.get("parameters") or ANYTHING if each.get("strict") else ANYTHING) for each in functions
    ]
    grammar = calls_grammar(tools, writing, several=not offer.one_call, answer=answer)
    return Form(grammar, wants.grammar_field if asked is not None and not offer.strict else "tools")


def _schema_of(asked: Grammar, field: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(asked.source, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise UserError(f"a schema must be an object: {error}", field=field) from None


def template_arguments(asked: ChatRequest, offer: Offer | None) -> dict[str, Any]:
    """For the chat template.  What the client says in ``chat_template_kwargs`` goes before what follows from others."""
    made: dict[str, Any] = {}
    if asked.reasoning_effort is not None:
        made = {"reasoning_effort": asked.reasoning_effort, "enable_thinking": asked.reasoning_effort != "none"}
    made |= asked.chat_template_kwargs or {}
    if offer is not None:
        made["tools"] = offer.tools
    return made
