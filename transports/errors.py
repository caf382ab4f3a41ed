"""Errors as clients see them: a status, OpenAI's error object, and when it is worth trying again."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from stepwell.core.errors import CapacityError, UserError
from stepwell.core.types import NS_PER_MS

MAX_MESSAGE = 600
"""Letters of a message: an error is never much larger than the mistake (vLLM measured 5,300 times)."""

MAX_RETRY_S = 60
"""The SDK obeys up to 120 s and gives up beyond that."""

DEFAULT_RETRY_S = 5
"""If nothing is known of how long it will take."""

_UNAVAILABLE = (
    "not_serving",
    "not_ready",
    "draining",
    "shutting_down",
    "aborted",
    "store_full",
    "store_failed",
    "store_busy",
)
_POINTLESS = ("shed",)
"""Given up for good: the policy would let it go again."""
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


class LimitReached(CapacityError):
    """A tenant's own limit; ``headers`` say where it stands.  ``retry`` False: it never fits."""

    def __init__(self, message: str, wait_ns: int, headers: Mapping[str, str], *, retry: bool = True) -> None:
        super().__init__(message, code="rate_limit_exceeded", retry_after_ns=wait_ns)
        self.headers = headers
        self.retry = retry


class Refusal(msgspec.Struct, frozen=True):
    """What a client is told.  ``retry_ms``: in how long it may help to ask again; 0: nothing is said of that."""

    status: int
    code: str
    message: str
    param: str | None = None
    retry_ms: int = 0
    pointless: bool = False
    """To ask again, which an SDK would do by itself."""
    more: Mapping[str, str] = {}
    """Headers."""

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
        told = dict(self.more)
        if self.pointless:
            told["x-should-retry"] = "false"
        elif self.retry_ms:
            told["Retry-After"] = str(-(-self.retry_ms // 1000))
            told["retry-after-ms"] = str(self.retry_ms)
        return told


def refusal_of(error: BaseException, wait_ns: int = 0) -> Refusal:
    """What ``error`` is to a client.  ``wait_ns`` is a guess how long until there is room, 0 if there is none."""
    if isinstance(error, RequestError):
        return Refusal(error.status, error.code, str(error), error.field or None)
    if isinstance(error, UserError):
        return Refusal(400, "invalid_value", str(error), error.field or None)
    if isinstance(error, CapacityError):
        limited = isinstance(error, LimitReached)
        known_ns = error.retry_after_ns if limited and error.retry_after_ns else max(error.retry_after_ns, wait_ns)
        retry_ms = min(-(-known_ns // NS_PER_MS) or DEFAULT_RETRY_S * 1000, MAX_RETRY_S * 1000)
        if error.code == "prompt_too_long":
            return Refusal(400, "context_length_exceeded", str(error), "prompt")
        status = 503 if error.code in _UNAVAILABLE else 429
        code = _CODES.get(error.code, error.code)
        pointless = error.code in _POINTLESS or (isinstance(error, LimitReached) and not error.retry)
        more = error.headers if isinstance(error, LimitReached) else {}
        return Refusal(status, code, str(error), retry_ms=retry_ms, pointless=pointless, more=more)
    return Refusal(500, "internal_error", "the server failed; its log says why")
