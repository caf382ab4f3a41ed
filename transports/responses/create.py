"""What a client may send to have a response made, with bounds; and the same checked, with nothing left of its bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Raw

from stepwell.core.errors import UserError
from stepwell.transports.errors import RequestError
from stepwell.transports.http.chat_wants import read_as
from stepwell.transports.http.formats import TextFormat, form_of_text, format_told
from stepwell.transports.http.requests import NOTHING, Label, Salt, Sampled, StreamOptions, Whole
from stepwell.transports.http.tools import Offer
from stepwell.transports.http.wanting import wants_of
from stepwell.transports.responses.items import InputItem, items_of_input
from stepwell.transports.responses.tools import tools_of
from stepwell.transports.service import Service
from stepwell.transports.wants import Wants

Metadata = Annotated[
    dict[Annotated[str, msgspec.Meta(max_length=64)], Annotated[str, msgspec.Meta(max_length=512)]],
    msgspec.Meta(max_length=16),
]
LaneName = Annotated[str, msgspec.Meta(max_length=128)]
Id = Annotated[str, msgspec.Meta(max_length=128)]
LOGPROBS = "message.output_text.logprobs"


class StreamSettings(StreamOptions, kw_only=True):
    include_scheduling: bool | None = None
    """Ours: tell when a policy takes the response off the device, and when it goes on."""


class TextSettings(msgspec.Struct):
    format: TextFormat | None = None
    verbosity: str | None = None


class Reasoning(msgspec.Struct):
    effort: Annotated[str, msgspec.Meta(max_length=32)] | None = None
    summary: Annotated[str, msgspec.Meta(max_length=32)] | None = None


class CacheOptions(msgspec.Struct):
    prewarm: bool | None = None


class BackgroundOptions(msgspec.Struct):
    completion_window: Literal["soonest", "2h", "8h"] | None = None


class Create(Sampled, kw_only=True):
    """The body of ``POST /v1/responses``, and ``response.create`` with the lane that it goes into."""

    input: Raw = NOTHING
    """A text, or a list of ``InputItem``."""
    instructions: str | None = None
    previous_response_id: Id | None = None
    max_output_tokens: Whole | None = None
    metadata: Metadata | None = None
    store: bool | None = None
    background: bool | None = None
    background_options: BackgroundOptions | None = None
    stream_options: StreamSettings | None = None
    stream_id: LaneName | None = None
    text: TextSettings | None = None
    reasoning: Reasoning | None = None
    tools: Raw = NOTHING
    tool_choice: Raw = NOTHING
    parallel_tool_calls: bool | None = None
    max_tool_calls: Whole | None = None
    include: Annotated[list[Label], msgspec.Meta(max_length=16)] | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    generate: bool | None = None
    prompt_cache_options: CacheOptions | None = None
    prompt_cache_retention: Label | None = None
    cache_salt: Salt | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    conversation: Raw = NOTHING
    prompt: Raw = NOTHING


CREATE = msgspec.json.Decoder(Create)


class Order(msgspec.Struct, kw_only=True):
    """A response to be made.  It keeps nothing of the message: a single ``Raw`` would be all of it."""

    wants: Wants
    items: list[InputItem]
    offer: Offer | None
    arguments: Mapping[str, Any]
    """For the chat template."""
    told: dict[str, Any]
    """What the response object tells back."""
    previous: str | None
    lane: str | None
    store: bool
    background: bool
    stream: bool
    hold: bool
    """It goes on for a while without a connection."""
    scheduling: bool
    """Pauses are told."""
    drop_old: bool
    """Of a conversation that is too long, the oldest messages."""

    @property
    def tenant(self) -> str:
        return self.wants.standing.tenant

    def forget(self) -> None:
        """It is in line: what it took to get there is not needed any more."""
        self.items, self.arguments, self.offer = [], {}, None
        self.wants = Wants(standing=self.wants.standing)


def order_of(asked: Create, service: Service, headers: Mapping[str, str]) -> Order:
    """``asked``, checked; raises ``UserError`` with the field that is wrong, or asks for what there is not."""
    _check(asked)
    tools = tools_of(asked.tools, asked.tool_choice, asked.parallel_tool_calls)
    store = asked.store is not False
    if asked.background and not store:
        raise UserError("runs without a connection, so its response has to be stored", field="background")
    window = asked.background_options.completion_window if asked.background and asked.background_options else None
    if window in ("2h", "8h") and asked.service_tier is None and "flex" in service.wire.rules.tiers:
        asked.service_tier = "flex"
    wants = read_as(_wants(asked, service, headers), tools.offer, service, asked.cache_salt)
    options = asked.stream_options or StreamSettings()
    return Order(
        wants=wants,
        items=items_of_input(asked.input),
        offer=tools.offer,
        arguments=_arguments(asked, tools.offer),
        told=_told(asked, wants, store) | {"tools": tools.told, "tool_choice": tools.choice},
        previous=asked.previous_response_id or None,
        lane=asked.stream_id,
        store=store,
        background=bool(asked.background),
        stream=bool(asked.stream),
        hold=asked.store is True and bool(asked.stream),
        scheduling=bool(options.include_scheduling),
        drop_old=asked.truncation == "auto",
    )


def _check(asked: Create) -> None:
    if asked.n is not None and asked.n != 1:
        raise UserError("one response is one answer", field="n")
    for field in ("conversation", "prompt"):
        if bytes(getattr(asked, field)) != b"null":
            raise RequestError(
                "is not kept here; send the items, or previous_response_id", field=field, code="unsupported_parameter"
            )


def _wants(asked: Create, service: Service, headers: Mapping[str, str]) -> Wants:
    limit = "max_tokens" if asked.max_output_tokens is None else "max_output_tokens"
    logprobs = asked.top_logprobs or 0 if asked.top_logprobs or LOGPROBS in (asked.include or ()) else -1
    form = form_of_text(asked.text.format if asked.text is not None else None, asked.structured_outputs)
    wants = wants_of(asked, service, headers, limit=limit, logprobs=logprobs, form=form)
    prewarm = asked.prompt_cache_options is not None and asked.prompt_cache_options.prewarm
    if asked.generate is False or prewarm:
        sampling = msgspec.structs.replace(wants.sampling, logprobs=-1)
        return msgspec.structs.replace(wants, max_tokens=0, sampling=sampling)
    return wants


def _arguments(asked: Create, offer: Offer | None) -> dict[str, Any]:
    """For the chat template.  What the client says in ``chat_template_kwargs`` goes before what follows from others."""
    effort = asked.reasoning.effort if asked.reasoning is not None else None
    made: dict[str, Any] = {}
    if effort is not None:
        made = {"reasoning_effort": effort, "enable_thinking": effort != "none"}
    made |= asked.chat_template_kwargs or {}
    return made | ({"tools": offer.tools} if offer is not None else {})


def _told(asked: Create, wants: Wants, store: bool) -> dict[str, Any]:
    """What of the response object is known from the beginning."""
    effort, summary = (asked.reasoning.effort, asked.reasoning.summary) if asked.reasoning else (None, None)
    told: dict[str, Any] = {
        "background": bool(asked.background),
        "instructions": asked.instructions,
        "max_output_tokens": asked.max_output_tokens,
        "max_tool_calls": asked.max_tool_calls,
        "metadata": asked.metadata or {},
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "previous_response_id": asked.previous_response_id,
        "prompt_cache_key": asked.prompt_cache_key,
        "reasoning": {"effort": effort, "summary": summary},
        "safety_identifier": asked.safety_identifier,
        "service_tier": wants.standing.tier,
        "store": store,
        "temperature": asked.temperature,
        "text": {
            "format": format_told(asked.text.format if asked.text else None),
            "verbosity": asked.text.verbosity if asked.text else None,
        },
        "top_logprobs": asked.top_logprobs or 0,
        "top_p": asked.top_p,
        "truncation": asked.truncation or "disabled",
        "user": asked.user,
    }
    return told
