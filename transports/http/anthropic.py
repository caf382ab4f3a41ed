"""``/v1/messages`` in Anthropic's shapes, streamed and not, and ``/v1/messages/count_tokens``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from stepwell.core.errors import StepwellError, UserError
from stepwell.transports.chat import Message
from stepwell.transports.generation import Generation
from stepwell.transports.http import anthropic_requests as asking
from stepwell.transports.http.answering import Shape, accepted, check_model, respond
from stepwell.transports.http.anthropic_shape import REQUEST_ID, MessageShape, error_of, status_of
from stepwell.transports.http.body import read_body, request_id, service_of
from stepwell.transports.http.chat_wants import read_as
from stepwell.transports.http.decoding import decode_body
from stepwell.transports.http.formats import form_of
from stepwell.transports.http.sse import ClientGone, unless_gone
from stepwell.transports.http.tools import Offer
from stepwell.transports.http.wanting import wants_of
from stepwell.transports.service import Service

Endpoint = Callable[[Request], Awaitable[Response]]


def in_their_words(endpoint: Endpoint) -> Endpoint:
    """Whatever is refused is told as Anthropic tells it."""

    async def answering(request: Request) -> Response:
        try:
            response = await endpoint(request)
        except ClientGone:
            raise
        except StepwellError as error:
            refusal = service_of(request).refusal(error)
            response = JSONResponse(error_of(refusal), status_of(refusal), dict(refusal.headers))
            response.headers["X-Request-Id"] = request_id(request)
            if refusal.status in (408, 413, 503):  # of a body that nobody reads, the rest need not come
                response.headers["Connection"] = "close"
        response.headers[REQUEST_ID] = response.headers["X-Request-Id"]
        return response

    return answering


def _chat(asked: asking.CountRequest, service: Service) -> tuple[list[Message], dict[str, Any], Offer | None]:
    """Messages, what the template is told beside them, and tools."""
    offer = asking.offer_of(asked)
    messages = asking.chat_of(asked)
    if offer is not None:
        messages = [*offer.told(messages, service.parsers)]
    return messages, asking.arguments_of(asked, offer), offer


@in_their_words
async def messages(request: Request) -> Response:
    """``POST /v1/messages``."""
    service = service_of(request)
    asked = await decode_body(await read_body(request), asking.MESSAGES)
    check_model(service, asked.model)
    if asked.n not in (None, 1):
        raise UserError("a message is one answer", field="n")
    said, arguments, offer = _chat(asked, service)
    # Their tiers are not ours, and their words for the rest are other ones.
    asked.stop, asked.service_tier = asked.stop_sequences, None
    asked.user = asked.metadata.user_id if asked.metadata is not None else asked.user
    form = form_of(None, asked.structured_outputs)
    wants = read_as(wants_of(asked, service, request.headers, form=form), offer, service)

    async def begin() -> tuple[Generation, Shape]:
        prompt = await service.prompts.chat(said, arguments, "messages")
        return await accepted(service, [prompt], wants), MessageShape(service, asked.max_tokens)

    return await respond(request, service, bool(asked.stream), begin)


@in_their_words
async def count_tokens(request: Request) -> Response:
    """``POST /v1/messages/count_tokens``: of the prompt that the same messages would make."""
    service = service_of(request)
    asked = await decode_body(await read_body(request), asking.COUNT)
    check_model(service, asked.model)
    said, arguments, _ = _chat(asked, service)
    ids = await unless_gone(request, service, lambda: service.prompts.tokens(said, arguments, "messages"))
    headers = {"X-Request-Id": request_id(request)}
    return Response(msgspec.json.encode({"input_tokens": len(ids)}), 200, headers, media_type="application/json")


ANTHROPIC_ROUTES = (
    Route("/v1/messages", messages, methods=["POST"]),
    Route("/v1/messages/count_tokens", count_tokens, methods=["POST"]),
)
