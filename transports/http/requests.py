"""What clients may send, as types with bounds; unknown fields are ignored and wrong ones named.

Every bound is here, in ``decoding`` or in ``[server]``: nothing is done for a request before it has passed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Raw

from stepwell.core.errors import UserError
from stepwell.core.execution import PromptIds
from stepwell.core.sampling import GREEDY_BELOW, SamplingParams
from stepwell.core.types import MAX_PRIORITY
from stepwell.transports.chat import Message
from stepwell.transports.errors import too_long
from stepwell.transports.http.decoding import SMALL, decode, items_of
from stepwell.transports.service import Service, Wants

MAX_TOKENS = 1 << 40
MAX_MESSAGES = 4096
MAX_TOOL_CALLS = 256 << 10
"""Bytes, of all messages together."""
MAX_STOP_LETTERS = 1024
"""Of all stop strings together: each letter is a state of the automaton that looks for them."""
NOTHING = Raw(b"null")

Whole = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
StopText = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_STOP_LETTERS)]
StopTexts = Annotated[list[StopText], msgspec.Meta(max_length=16)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]
TokenIds = Annotated[list[TokenId], msgspec.Meta(max_length=256)]
Bias = Annotated[dict[int, Annotated[float, msgspec.Meta(ge=-100, le=100)]], msgspec.Meta(max_length=1024)]
Seed = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Priority = Annotated[int, msgspec.Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]
Label = Annotated[str, msgspec.Meta(max_length=1024)]


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Sampled(msgspec.Struct, kw_only=True):
    """What every kind of request has in common."""

    model: str | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=1024)] | None = None
    max_tokens: Whole | None = None
    min_tokens: Whole | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1, le=1 << 31)] | None = None
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0, le=100)] | None = None
    logit_bias: Bias | None = None
    seed: Seed | None = None
    stop: StopText | StopTexts | None = None
    stop_token_ids: TokenIds | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: Priority | None = None
    service_tier: Annotated[str, msgspec.Meta(max_length=32)] | None = None
    session_id: Label | None = None
    prompt_cache_key: Label | None = None
    safety_identifier: Label | None = None
    user: Label | None = None


class Part(msgspec.Struct, gc=False):
    type: str
    text: str | None = None


class ChatMessage(msgspec.Struct, gc=False):
    role: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: Raw = NOTHING
    tool_call_id: str | None = None


class ResponseFormat(msgspec.Struct):
    type: str = "text"


class ChatRequest(Sampled, kw_only=True):
    """``POST /v1/chat/completions``."""

    messages: Raw
    """A list of ``ChatMessage``, see ``chat_messages``."""
    max_completion_tokens: Whole | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    response_format: ResponseFormat | None = None
    tool_choice: Raw = NOTHING


class CompletionRequest(Sampled, kw_only=True):
    """``POST /v1/completions``."""

    prompt: Raw
    """See ``prompts_of``."""
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | bool | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: Annotated[int, msgspec.Meta(ge=1, le=1)] | None = None


CHAT = msgspec.json.Decoder(ChatRequest)
COMPLETION = msgspec.json.Decoder(CompletionRequest)
MESSAGES = msgspec.json.Decoder(Annotated[list[ChatMessage], msgspec.Meta(min_length=1)])
TEXT = msgspec.json.Decoder(str)
IDS = msgspec.json.Decoder(list[int])
ANYTHING = msgspec.json.Decoder()
_BEGIN = re.compile(rb'(")|\[\s*(.)', re.DOTALL)


# ------------------------------------------------------------------------------------------------ meaning


def check_promises(request: ChatRequest) -> None:
    """What would change the shape of the answer is refused rather than ignored."""
    if request.response_format is not None and request.response_format.type != "text":
        raise UserError("structured output is not supported here; only text is", field="response_format.type")
    if bytes(request.tool_choice) not in (b"null", b'"none"', b'"auto"'):
        raise UserError("tools are not supported here; none and auto are understood as text", field="tool_choice")


def chat_messages(messages: Raw) -> list[ChatMessage]:
    """They are counted before they are made."""
    if memoryview(messages).nbytes > SMALL:
        items_of(messages, MAX_MESSAGES, "messages")
    return decode(messages, MESSAGES, "messages")


def messages_of(messages: Sequence[ChatMessage], field: str = "messages") -> list[Message]:
    """The chat as the template takes it: content as text, null only where nothing was said."""
    if sum(memoryview(each.tool_calls).nbytes for each in messages) > MAX_TOOL_CALLS + 4 * len(messages):
        raise UserError(f"tool calls take more than {MAX_TOOL_CALLS >> 10} KiB", field=field)
    return [_message(each, f"{field}[{index}]") for index, each in enumerate(messages)]


def _message(message: ChatMessage, field: str) -> Message:
    content = message.content
    if isinstance(content, list):
        for index, part in enumerate(content):
            if part.type not in ("text", "input_text", "output_text") or part.text is None:
                raise UserError(
                    f"only parts of text are understood, not {part.type!r}", field=f"{field}.content[{index}]"
                )
        content = "".join(part.text or "" for part in content)
    if content is None:
        if message.role != "assistant":
            raise UserError("must be text, or a list of parts of text", field=f"{field}.content")
        content = ""
    made: dict[str, Any] = {"role": message.role, "content": content}
    for name in ("name", "tool_call_id"):
        if getattr(message, name) is not None:
            made[name] = getattr(message, name)
    calls = decode(message.tool_calls, ANYTHING, f"{field}.tool_calls")
    if calls is not None:
        made["tool_calls"] = calls
    return made


def wants_of(
    request: Sampled,
    service: Service,
    headers: Mapping[str, str],
    *,
    logprobs: int = -1,
    limit: str = "max_tokens",
    least: int = 1,
) -> Wants:
    """What is asked for beside the prompt, within the server's own limits; ``limit`` is the field that bounds it."""
    max_tokens = getattr(request, limit)
    if max_tokens is not None and max_tokens < least:
        raise UserError("must be at least 1 (null: the rest of the context)", field=limit)
    if request.min_tokens is not None and max_tokens is not None and request.min_tokens > max_tokens:
        raise UserError(f"must not be more than {limit} ({max_tokens}), got {request.min_tokens}", field="min_tokens")
    n = request.n or 1
    if n > service.limits.max_choices:
        raise UserError(f"at most {service.limits.max_choices} here, got {n}", field="n")
    if logprobs >= 0 and not service.model.logprobs:
        raise UserError("this model's backend gives none", field="logprobs")
    vocab = service.model.tokenizer.vocab_size
    for id in request.logit_bias or ():
        if not 0 <= id < vocab:
            raise UserError(f"there is no token {id}; token ids are 0 to {vocab - 1}", field="logit_bias")
    stop = [request.stop] if isinstance(request.stop, str) else request.stop or []
    if sum(map(len, stop)) > MAX_STOP_LETTERS:
        raise UserError(f"at most {MAX_STOP_LETTERS} letters, of all of them together", field="stop")
    return Wants(
        n=n,
        max_tokens=max_tokens,
        stop=tuple(stop),
        sampling=_sampling(request, service.model.sampling, logprobs),
        standing=service.wire.standing(request, headers),
    )


def _sampling(request: Sampled, defaults: Mapping[str, Any], logprobs: int) -> SamplingParams:
    given: dict[str, Any] = dict(defaults)
    for name in (
        *("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
        *("logit_bias", "min_tokens", "ignore_eos"),
    ):
        value = getattr(request, name)
        if value is not None:
            given[name] = value
    if request.top_k is not None:
        given["top_k"] = max(request.top_k, 0)
    if request.seed is not None:
        given["seed"] = request.seed & ((1 << 63) - 1)
    if given.get("temperature", 1.0) < GREEDY_BELOW:
        given["temperature"] = 0.0
    return SamplingParams(**given, logprobs=logprobs, stop_token_ids=tuple(request.stop_token_ids or ()))


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
