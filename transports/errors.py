"""Errors as clients see them: a status, OpenAI's error object, and when it is worth trying again."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from stepwell.core.errors import CapacityError, UserError
from stepwell.core.types import NS_PER_S

MAX_MESSAGE = 600
"""Letters of a message: an error is never much larger than the mistake (vLLM measured 5,300 times)."""

MAX_RETRY_S = 60
"""The SDK obeys up to 120 s and gives up beyond that."""

DEFAULT_RETRY_S = 5
"""If nothing is known of how long it will take."""

_UNAVAILABLE = ("not_serving", "not_ready", "draining", "shutting_down", "aborted")
_CODES = {"not_serving": "not_ready"}
_TYPES = {
    400: "invalid_request_error",
    404: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
}


class RequestError(UserError):
    """A mistake in a request that has a status or a code of its own."""

    def __init__(self, message: str, *, field: str = "", status: int = 400, code: str = "invalid_value") -> None:
        super().__init__(message, field=field)
        self.status = status
        self.code = code


def too_long(prompt_tokens: int | None, context: int, field: str) -> RequestError:
    """The prompt leaves no room for a single new token.  ``prompt_tokens`` None: so long that nobody counted."""
    has = f"has {prompt_tokens} tokens" if prompt_tokens is not None else "is longer than that could ever be"
    return RequestError(
        f"the model's context is {context} tokens, prompt and answer together, and the prompt {has}",
        field=field,
        code="context_length_exceeded",
    )


class Refusal(msgspec.Struct, frozen=True):
    """What a client is told.  ``retry_s`` 0: it will not help."""

    status: int
    code: str
    message: str
    param: str | None = None
    retry_s: int = 0

    @property
    def error(self) -> dict[str, str | None]:
        """OpenAI's error object."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"message": self.message[:MAX_MESSAGE], "type": kind, "param": self.param, "code": self.code}

    @property
    def body(self) -> bytes:
        return msgspec.json.encode({"error": self.error})

    @property
    def headers(self) -> Mapping[str, str]:
        return {"Retry-After": str(self.retry_s)} if self.retry_s else {}


def refusal_of(error: BaseException, wait_ns: int = 0) -> Refusal:
    """What ``error`` is to a client.  ``wait_ns`` is a guess how long until there is room, 0 if there is none."""
    if isinstance(error, RequestError):
        return Refusal(error.status, error.code, str(error), error.field or None)
    if isinstance(error, UserError):
        return Refusal(400, "invalid_value", str(error), error.field or None)
    if isinstance(error, CapacityError):
        retry_s = -(-max(error.retry_after_ns, wait_ns) // NS_PER_S)
        if error.code == "prompt_too_long":
            return Refusal(400, "context_length_exceeded", str(error), "prompt")
        status = 503 if error.code in _UNAVAILABLE else 429
        code = _CODES.get(error.code, error.code)
        return Refusal(status, code, str(error), retry_s=min(retry_s or DEFAULT_RETRY_S, MAX_RETRY_S))
    return Refusal(500, "internal_error", "the server failed; its log says why")
