"""What clients may send, as types with bounds; unknown fields are ignored and wrong ones named.

Every bound is here or in ``[server]``: nothing is done for a request before it has passed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

import msgspec

from stepwell.core.errors import UserError
from stepwell.core.sampling import SamplingParams
from stepwell.transports.errors import RequestError
from stepwell.transports.service import Message, Service, Wants

T = TypeVar("T")

MAX_TOKENS = 1 << 40
GREEDY_BELOW = 1e-5
"""A temperature under this is greedy: as a divisor it would overflow."""

Whole = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
StopText = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
StopTexts = Annotated[list[StopText], msgspec.Meta(max_length=16)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]
TokenIds = Annotated[list[TokenId], msgspec.Meta(max_length=256)]
Bias = Annotated[dict[int, Annotated[float, msgspec.Meta(ge=-100, le=100)]], msgspec.Meta(max_length=1024)]
Seed = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Priority = Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)]


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


class Part(msgspec.Struct):
    type: str
    text: str | None = None


class ChatMessage(msgspec.Struct):
    role: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: Any = None
    tool_call_id: str | None = None


class ResponseFormat(msgspec.Struct):
    type: str = "text"


class ChatRequest(Sampled, kw_only=True):
    """``POST /v1/chat/completions``."""

    messages: Annotated[list[ChatMessage], msgspec.Meta(min_length=1, max_length=4096)]
    max_completion_tokens: Whole | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    response_format: ResponseFormat | None = None
    tool_choice: Any = None


class CompletionRequest(Sampled, kw_only=True):
    """``POST /v1/completions``."""

    prompt: Any
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | bool | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: Annotated[int, msgspec.Meta(ge=1, le=1)] | None = None


_AT = re.compile(r"^(?P<what>.*?)(?: - at `(?P<key>key in )?\$(?P<path>.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(\w+)`")
_BEFORE = re.compile(r'"((?:[^"\\]|\\.){1,64})"\s*:\s*[^"{}]*$')
_BYTE = re.compile(r"\(byte (\d+)\)")


def decode(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """``body`` as a request; a mistake is an error that names the field and what was expected there."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _malformed(str(error), body) from None


def _invalid(text: str) -> RequestError:
    match = _AT.match(text)
    what, path = (match["what"], match["path"] or "") if match else (text, "")
    field = path.lstrip(".").replace("[...]", "")
    missing = _MISSING.search(what)
    if missing:
        field = f"{field}.{missing[1]}".lstrip(".")
        what = "is required"
    return RequestError(what[0].lower() + what[1:].replace("`", ""), field=field)


def _malformed(text: str, body: bytes) -> RequestError:
    """JSON knows no NaN, no Infinity and nothing beyond a double: say where, if that can be seen."""
    at = _BYTE.search(text)
    start = body[: int(at[1]) + 1][-512:].decode("utf-8", "replace") if at else ""
    near = _BEFORE.search(start)
    return RequestError(f"the body is not valid JSON: {text}", field=near[1] if near else "", code="invalid_json")


CHAT = msgspec.json.Decoder(ChatRequest)
COMPLETION = msgspec.json.Decoder(CompletionRequest)


# ------------------------------------------------------------------------------------------------ meaning


def check_promises(request: ChatRequest) -> None:
    """What would change the shape of the answer is refused rather than ignored."""
    if request.response_format is not None and request.response_format.type != "text":
        raise UserError("structured output is not supported here; only text is", field="response_format.type")
    if request.tool_choice not in (None, "none", "auto"):
        raise UserError("tools are not supported here; none and auto are understood as text", field="tool_choice")


def messages_of(messages: Sequence[ChatMessage]) -> list[Message]:
    """The chat as the template takes it: content as text, null only where nothing was said."""
    return [_message(each, f"messages[{index}]") for index, each in enumerate(messages)]


def _message(message: ChatMessage, field: str) -> Message:
    content = message.content
    if isinstance(content, list):
        for index, part in enumerate(content):
            if part.type not in ("text", "input_text", "output_text") or part.text is None:
                raise UserError(f"only parts of text are understood, not {part.type!r}", field=f"{field}[{index}]")
        content = "".join(part.text or "" for part in content)
    if content is None:
        if message.role != "assistant":
            raise UserError("must be text, or a list of parts of text", field=f"{field}.content")
        content = ""
    made: dict[str, Any] = {"role": message.role, "content": content}
    for name in ("name", "tool_calls", "tool_call_id"):
        if getattr(message, name) is not None:
            made[name] = getattr(message, name)
    return made


def wants_of(request: Sampled, service: Service, *, logprobs: int = -1, limit: str = "max_tokens") -> Wants:
    """What is asked for beside the prompt, within the server's own limits; ``limit`` is the field that bounds it."""
    max_tokens = getattr(request, limit)
    if max_tokens is not None and max_tokens < 1:
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
    return Wants(
        n=n,
        max_tokens=max_tokens,
        stop=tuple(stop),
        sampling=_sampling(request, service.model.sampling, logprobs),
        klass=service.klass(request.service_tier, request.priority),
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


async def prompts_of(prompt: Any, service: Service) -> list[list[int]]:
    """A text, token ids, or a list of either, as the token ids of each prompt."""
    field = "prompt"
    if isinstance(prompt, str):
        return [await service.text_prompt(prompt, field)]
    if not isinstance(prompt, list) or not prompt:
        raise UserError("must be text, token ids, or a list of either, and not empty", field=field)
    if type(prompt[0]) is int:
        service.check_length(prompt, field)  # before anything looks at each of them
    if _are_ids(prompt):
        return [service.check_prompt(prompt, field)]
    if len(prompt) > service.limits.max_choices:
        raise UserError(f"at most {service.limits.max_choices} prompts at once, got {len(prompt)}", field=field)
    prompts = []
    for index, each in enumerate(prompt):
        place = f"{field}[{index}]"
        if isinstance(each, str):
            prompts.append(await service.text_prompt(each, place))
        elif isinstance(each, list) and _are_ids(service.check_length(each, place)):
            prompts.append(service.check_prompt(each, place))
        else:
            raise UserError("must be text or a list of token ids", field=place)
    return prompts


def _are_ids(items: list[Any]) -> bool:
    return all(type(item) is int for item in items)
