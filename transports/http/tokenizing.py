"""``/tokenize`` and ``/detokenize`` in vLLM's shapes: long texts in a thread, where they hold nobody up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stepwell.core.errors import UserError
from stepwell.core.protocols import Tokenizer
from stepwell.transports.http.answering import check_model
from stepwell.transports.http.body import read_body, request_id, service_of
from stepwell.transports.http.decoding import decode, decode_body
from stepwell.transports.http.messages import chat_messages, messages_of
from stepwell.transports.http.requests import IDS, NOTHING, TEXT
from stepwell.transports.http.sse import unless_gone
from stepwell.transports.http.tools import offer_of
from stepwell.transports.parsing.parsers import Showing
from stepwell.transports.service import Service


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """``POST /tokenize``: of a text, or of a chat."""

    model: str | None = None
    prompt: Raw = NOTHING
    messages: Raw = NOTHING
    add_special_tokens: bool | None = None
    """Of a text: with what a text to complete begins with, usually BOS (the default).  A chat's template says that."""
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    tools: Raw = NOTHING
    chat_template_kwargs: dict[str, Any] | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """``POST /detokenize``."""

    tokens: Raw
    model: str | None = None


TOKENIZE = msgspec.json.Decoder(TokenizeRequest)
DETOKENIZE = msgspec.json.Decoder(DetokenizeRequest)


async def tokenize(request: Request) -> Response:
    """``POST /tokenize``."""
    service = service_of(request)
    asked = await decode_body(await read_body(request), TOKENIZE)
    check_model(service, asked.model)
    _check(asked)
    of_chat = bytes(memoryview(asked.messages)[:4]) != b"null"

    async def whole() -> bytes:
        ids = await _of_chat(asked, service) if of_chat else await _of_text(asked, service)
        return await service.aside.unless_short(len(ids), lambda: _told(ids, asked, service))

    return _json(request, await unless_gone(request, service, whole))


def _check(asked: TokenizeRequest) -> None:
    given = [name for name in ("prompt", "messages") if bytes(memoryview(getattr(asked, name))[:4]) != b"null"]
    if len(given) != 1:
        raise UserError("either this or messages is needed, and not both", field="prompt")
    if asked.add_generation_prompt is False:
        raise UserError("a chat is shown as it is answered, with how the answer begins", field="add_generation_prompt")


async def _of_text(asked: TokenizeRequest, service: Service) -> list[int]:
    text, tokenizer = decode(asked.prompt, TEXT, "prompt"), service.model.tokenizer
    plain: Callable[[str], list[int]] = tokenizer.encode
    encode = plain if asked.add_special_tokens is False else service.model.encode or plain
    return await service.aside.unless_short(len(text), lambda: encode(text))


async def _of_chat(asked: TokenizeRequest, service: Service) -> list[int]:
    said, offer = messages_of(chat_messages(asked.messages)), offer_of(asked.tools, NOTHING, None)
    arguments = dict(asked.chat_template_kwargs or {})
    if offer is not None:
        arguments["tools"], said = offer.tools, [*offer.told(said, service.parsers)]
    return await service.prompts.tokens(said, arguments, "messages")


def _told(ids: list[int], asked: TokenizeRequest, service: Service) -> bytes:
    texts = None
    if asked.return_token_strs:
        token = whole(service.model.tokenizer).token_bytes
        texts = [token(id).decode("utf-8", "replace") for id in ids]
    told = {"count": len(ids), "max_model_len": service.context, "tokens": ids, "token_strs": texts}
    return msgspec.json.encode(told)


async def detokenize(request: Request) -> Response:
    """``POST /detokenize``."""
    service = service_of(request)
    asked = await decode_body(await read_body(request), DETOKENIZE)
    check_model(service, asked.model)
    tokenizer = whole(service.model.tokenizer)

    def made() -> bytes:
        ids = decode(asked.tokens, IDS, "tokens")
        if ids and not 0 <= min(ids) <= max(ids) < tokenizer.vocab_size:
            raise UserError(f"token ids are 0 to {tokenizer.vocab_size - 1}", field="tokens")
        return msgspec.json.encode({"prompt": tokenizer.decode(ids).decode("utf-8", "replace")})

    size = memoryview(asked.tokens).nbytes
    return _json(request, await unless_gone(request, service, lambda: service.aside.unless_short(size, made)))


def whole(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer, with every special token's name as its text."""
    names: dict[str, int] = getattr(tokenizer, "special_tokens", {})
    return Showing(tokenizer, {id: name.encode() for name, id in names.items()}) if names else tokenizer


def _json(request: Request, body: bytes) -> Response:
    return Response(body, 200, {"X-Request-Id": request_id(request)}, media_type="application/json")


TOKENIZING_ROUTES = (
    Route("/tokenize", tokenize, methods=["POST"]),
    Route("/detokenize", detokenize, methods=["POST"]),
)
