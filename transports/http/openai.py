"""``/v1/chat/completions`` and ``/v1/completions`` in OpenAI's shapes, streamed and not."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from stepwell.core.errors import UserError
from stepwell.transports.generation import Generation
from stepwell.transports.http import requests
from stepwell.transports.http.answering import Shape, accepted, check_model, respond
from stepwell.transports.http.body import read_body, service_of
from stepwell.transports.http.chat_shape import ChatShape
from stepwell.transports.http.chat_wants import read_as, template_arguments
from stepwell.transports.http.completion_shape import CompletionShape
from stepwell.transports.http.decoding import decode_body
from stepwell.transports.http.formats import form_of
from stepwell.transports.http.messages import chat_messages, messages_of
from stepwell.transports.http.prompt_ids import prompts_of
from stepwell.transports.http.tools import offer_of
from stepwell.transports.http.wanting import wants_of
from stepwell.transports.service import Service

ECHO_LOGPROBS = 5
"""The best tokens in each place of a prompt, at most."""
ECHO_ROWS = 1 << 18
"""Log-probabilities of prompts in one answer, at most: of each choice's prompt, each token's own and the best."""


async def chat(request: Request) -> Response:
    """``POST /v1/chat/completions``."""
    service = service_of(request)
    asked = await decode_body(await read_body(request), requests.CHAT)
    check_model(service, asked.model)
    limit = "max_tokens" if asked.max_completion_tokens is None else "max_completion_tokens"
    if asked.top_logprobs and not asked.logprobs:
        raise UserError("needs logprobs to be true", field="top_logprobs")
    logprobs = (asked.top_logprobs or 0) if asked.logprobs else -1
    form = form_of(asked.response_format, asked.structured_outputs)
    offer = offer_of(asked.tools, asked.tool_choice, asked.parallel_tool_calls)
    wants = wants_of(asked, service, request.headers, logprobs=logprobs, limit=limit, form=form)
    wants = read_as(wants, offer, service, asked.cache_salt)
    messages, arguments = messages_of(chat_messages(asked.messages)), template_arguments(asked, offer)
    if offer is not None:
        messages = [*offer.told(messages, service.parsers)]

    async def begin() -> tuple[Generation, Shape]:
        prompt = await service.prompts.chat(messages, arguments, "messages")
        generation = await accepted(service, [prompt], wants, timed=bool(asked.include_metrics))
        return generation, ChatShape(service, asked, wants.standing.tier)

    return await respond(request, service, bool(asked.stream), begin, asked.request_id)


async def completions(request: Request) -> Response:
    """``POST /v1/completions``."""
    service = service_of(request)
    asked = await decode_body(await read_body(request), requests.COMPLETION)
    check_model(service, asked.model)
    if asked.suffix:
        raise UserError("filling in the middle is not supported", field="suffix")
    logprobs = -1 if asked.logprobs is None or asked.logprobs is False else int(asked.logprobs)
    if asked.echo and logprobs > ECHO_LOGPROBS:
        raise UserError(f"with echo at most {ECHO_LOGPROBS}, got {logprobs}", field="logprobs")
    form = form_of(asked.response_format, asked.structured_outputs)
    least = 0 if asked.echo else 1
    wants = wants_of(asked, service, request.headers, logprobs=logprobs, least=least, form=form)
    replace = msgspec.structs.replace
    if asked.echo:
        answer = logprobs if wants.max_tokens != 0 else -1
        wants = replace(wants, sampling=replace(wants.sampling, prompt_logprobs=logprobs, logprobs=answer))
    wants = replace(wants, opening="continuation", cache_salt=asked.cache_salt or "")

    async def begin() -> tuple[Generation, Shape]:
        prompts = await prompts_of(asked.prompt, service)
        if len(prompts) * wants.n > service.limits.max_choices:
            raise UserError(f"n times the prompts is at most {service.limits.max_choices} here", field="n")
        rows = sum(map(len, prompts)) * wants.n * (1 + wants.sampling.prompt_logprobs)
        if rows > ECHO_ROWS:
            raise UserError(f"tokens of the prompts, times n, times 1 + this: at most {ECHO_ROWS}", field="logprobs")
        echoes = await _texts(service, prompts) if asked.echo else []
        generation = await accepted(service, prompts, wants, timed=bool(asked.include_metrics))
        return generation, CompletionShape(service, asked, echoes, wants.standing.tier)

    return await respond(request, service, bool(asked.stream), begin, asked.request_id)


async def _texts(service: Service, prompts: Sequence[list[int]]) -> list[str]:
    decode = service.model.tokenizer.decode

    def make() -> list[str]:
        return [decode(prompt).decode("utf-8", "replace") for prompt in prompts]

    return await service.aside.unless_short(sum(map(len, prompts)), make)
