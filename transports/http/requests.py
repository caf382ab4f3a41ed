"""What clients may send, as types with bounds; unknown fields are ignored and wrong ones named.

Every bound is here, in ``decoding`` or in ``[server]``: nothing is done for a request before it has passed.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Raw

from stepwell.core.types import MAX_PRIORITY
from stepwell.transports.http.formats import ResponseFormat, StructuredOutputs

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
AllowedIds = Annotated[list[TokenId], msgspec.Meta(max_length=16_384)]
BadWords = Annotated[list[StopText], msgspec.Meta(max_length=64)]
Bias = Annotated[dict[int, Annotated[float, msgspec.Meta(ge=-100, le=100)]], msgspec.Meta(max_length=1024)]
Seed = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Priority = Annotated[int, msgspec.Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]
Label = Annotated[str, msgspec.Meta(max_length=1024)]


StreamInterval = Annotated[int, msgspec.Meta(ge=1, le=1024)]
Salt = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
RequestId = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.:-]{1,128}\Z")]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


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
    structured_outputs: StructuredOutputs | None = None
    allowed_token_ids: AllowedIds | None = None
    bad_words: BadWords | None = None


class Shown(Sampled, kw_only=True):
    """What chats and texts to complete have in common: how the answer is shown."""

    return_token_ids: bool | None = None
    stream_interval: StreamInterval | None = None
    """Tokens that a chunk of a stream waits for, at least; the first and the last wait for none."""
    include_metrics: bool | None = None
    """Times of this request, beside its usage."""
    cache_salt: Salt | None = None
    request_id: RequestId | None = None
    """Comes back in the header ``X-Request-Id``, and is used for nothing else."""


class Part(msgspec.Struct, gc=False):
    type: str
    text: str | None = None


class ChatMessage(msgspec.Struct, gc=False):
    role: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: Raw = NOTHING
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    """The same under vLLM's name for it."""


class ChatRequest(Shown, kw_only=True):
    """``POST /v1/chat/completions``."""

    messages: Raw
    """A list of ``ChatMessage``, see ``chat_messages``."""
    max_completion_tokens: Whole | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    response_format: ResponseFormat | None = None
    tools: Raw = NOTHING
    """A list of ``tools.Tool``."""
    tool_choice: Raw = NOTHING
    parallel_tool_calls: bool | None = None
    reasoning_effort: Effort | None = None


class CompletionRequest(Shown, kw_only=True):
    """``POST /v1/completions``."""

    prompt: Raw
    """See ``prompts_of``."""
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | bool | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: Annotated[int, msgspec.Meta(ge=1, le=1)] | None = None
    response_format: ResponseFormat | None = None


CHAT = msgspec.json.Decoder(ChatRequest)
COMPLETION = msgspec.json.Decoder(CompletionRequest)
MESSAGES = msgspec.json.Decoder(Annotated[list[ChatMessage], msgspec.Meta(min_length=1)])
TEXT = msgspec.json.Decoder(str)
IDS = msgspec.json.Decoder(list[int])
ANYTHING = msgspec.json.Decoder()
