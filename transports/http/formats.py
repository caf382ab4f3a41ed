"""What an answer has to look like, in clients' words: ``response_format``, ``structured_outputs``, ``text.format``."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Raw

from stepwell.core.errors import UserError
from stepwell.core.grammar import ANY_OBJECT, Grammar, choice_of
from stepwell.core.sampling import SamplingParams

NOTHING = Raw(b"null")

Source = Annotated[str, msgspec.Meta(max_length=1 << 20)]
"""Bounded again, and tighter, by ``[grammar]``."""


class JsonSchema(msgspec.Struct):
    """``response_format.json_schema``."""

    schema: Raw = NOTHING
    name: Annotated[str, msgspec.Meta(max_length=256)] | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct):
    """Of chat and text completions."""

    type: str = "text"
    json_schema: JsonSchema | None = None


class TextFormat(msgspec.Struct):
    """``text.format`` of Responses: the same, laid flat."""

    type: str = "text"
    schema: Raw = NOTHING
    name: Annotated[str, msgspec.Meta(max_length=256)] | None = None
    strict: bool | None = None


class StructuredOutputs(msgspec.Struct):
    """vLLM's: exactly one of these."""

    json: Raw = NOTHING
    regex: Source | None = None
    choice: Annotated[list[str], msgspec.Meta(max_length=1024)] | None = None
    grammar: Source | None = None
    json_object: bool | None = None


class Form(msgspec.Struct, frozen=True):
    """A grammar, and the field that it came in."""

    grammar: Grammar
    field: str


def form_of(response_format: ResponseFormat | None, structured_outputs: StructuredOutputs | None) -> Form | None:
    """What a completion is held to; None: nothing."""
    first = _of_format(response_format)
    second = None if structured_outputs is None else _of_structured(structured_outputs)
    if first is not None and second is not None:
        raise UserError("says it a second time, beside response_format", field="structured_outputs")
    return first or second


def form_of_text(format: TextFormat | None, structured_outputs: StructuredOutputs | None) -> Form | None:
    """What a response is held to."""
    first = _of_text(format)
    second = None if structured_outputs is None else _of_structured(structured_outputs)
    if first is not None and second is not None:
        raise UserError("says it a second time, beside text.format", field="structured_outputs")
    return first or second


def format_told(format: TextFormat | None) -> dict[str, Any]:
    """A response's format as it is told back."""
    if format is None or format.type != "json_schema":
        return {"type": "text" if format is None else format.type}
    schema = msgspec.json.decode(format.schema)
    return {"type": "json_schema", "name": format.name or "", "schema": schema, "strict": format.strict}


def with_form(sampling: SamplingParams, form: Form | None) -> SamplingParams:
    """Held to it.  Raises ``UserError`` for what cannot be wished for at the same time."""
    if form is None:
        return sampling
    for name in ("ignore_eos", "allowed_token_ids", "bad_words"):
        if getattr(sampling, name):
            raise UserError(f"cannot be together with {form.field}, which says where and how answers end", field=name)
    return msgspec.structs.replace(sampling, grammar=form.grammar)


def _of_format(asked: ResponseFormat | None) -> Form | None:
    field = "response_format"
    if asked is None or asked.type == "text":
        return None
    if asked.type == "json_object":
        return Form(ANY_OBJECT, field)
    if asked.type != "json_schema":
        raise UserError(f"must be text, json_object or json_schema, not {asked.type[:40]!r}", field=f"{field}.type")
    if asked.json_schema is None:
        raise UserError("is required for this type", field=f"{field}.json_schema")
    where = f"{field}.json_schema.schema"
    return Form(_schema(asked.json_schema.schema, where), where)


def _of_text(asked: TextFormat | None) -> Form | None:
    field = "text.format"
    if asked is None or asked.type == "text":
        return None
    if asked.type == "json_object":
        return Form(ANY_OBJECT, field)
    if asked.type != "json_schema":
        raise UserError(f"must be text, json_object or json_schema, not {asked.type[:40]!r}", field=f"{field}.type")
    return Form(_schema(asked.schema, f"{field}.schema"), f"{field}.schema")


def _of_structured(asked: StructuredOutputs) -> Form | None:
    field = "structured_outputs"
    found: list[Form] = []
    if asked.json_object:
        found.append(Form(ANY_OBJECT, f"{field}.json_object"))
    if bytes(asked.json) != b"null":
        found.append(Form(_schema(asked.json, f"{field}.json"), f"{field}.json"))
    if asked.regex is not None:
        found.append(Form(Grammar("regex", asked.regex), f"{field}.regex"))
    if asked.choice is not None:
        found.append(Form(choice_of(asked.choice, f"{field}.choice"), f"{field}.choice"))
    if asked.grammar is not None:
        found.append(Form(Grammar("lark", asked.grammar), f"{field}.grammar"))
    if len(found) > 1:
        raise UserError("takes one of json, regex, choice, grammar and json_object", field=field)
    return found[0] if found else None


def _schema(schema: Raw, field: str) -> Grammar:
    """A schema as its own text; as a text in a text, vLLM takes it too."""
    if bytes(schema) == b"null":
        raise UserError("is required", field=field)
    try:
        text = bytes(schema).decode()
        return Grammar("json", msgspec.json.decode(text, type=str) if text.startswith('"') else text)
    except (UnicodeDecodeError, msgspec.DecodeError) as error:
        raise UserError(f"is no JSON: {error}", field=field) from None
