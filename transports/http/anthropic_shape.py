"""An answer as Anthropic's Messages have it: blocks, one after another, and events that tell of each."""

from __future__ import annotations

from typing import Any

import msgspec

from stepwell.core.parsing import CallArguments, CallBegan, CallEnded, Content, Said
from stepwell.transports.errors import Refusal
from stepwell.transports.generation import Choice, Generation
from stepwell.transports.http.sse import Dialect
from stepwell.transports.http.usage import reasoning_tokens
from stepwell.transports.ids import fresh
from stepwell.transports.service import Service

Json = dict[str, Any]

_PLACE = "\x00text\x00"
_encode = msgspec.json.Encoder().encode
_PLACED = _encode(_PLACE)
_object = msgspec.json.Decoder(dict[str, Any]).decode

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
PREFIX = "/v1/messages"
REQUEST_ID = "request-id"
"""The header under which Anthropic's clients look for the id of a request."""
OWN_LIMIT = "rate_limit_exceeded"
"""The code of what a caller did too often; every other 429 says that the server is busy."""


def status_of(refusal: Refusal) -> int:
    """Anthropic's clients know 529 for a server that has no room, and 429 for limits of their own."""
    busy = refusal.status == 503 or (refusal.status == 429 and refusal.code != OWN_LIMIT)
    return 529 if busy else refusal.status


def theirs(path: str) -> bool:
    """Whether clients of theirs ask there, who want errors in their shape."""
    return path == PREFIX or path.startswith(f"{PREFIX}/")


def error_of(refusal: Refusal) -> Json:
    """Anthropic's error object."""
    kind = TYPES.get(status_of(refusal), "invalid_request_error" if refusal.status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": refusal.error["message"]}}


def event(kind: str, **fields: Any) -> bytes:
    """One, framed; its type is said twice, as clients look for either."""
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), _encode({"type": kind, **fields}))


ANTHROPIC = Dialect(event("ping"), b"", lambda refusal: b"event: error\ndata: %b\n\n" % _encode(error_of(refusal)))

_BLOCKS: dict[str, tuple[str, str]] = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}
"""By block: its deltas, and the field of one that holds the text."""


class MessageShape:
    """Of one answer."""

    dialect = ANTHROPIC
    prepares = False

    def __init__(self, service: Service, max_tokens: int) -> None:
        self._service = service
        self._max_tokens = max_tokens
        self._id = fresh("msg_")
        self._started = False
        self._open = ""
        """The block that is being said."""
        self._index = -1
        self._around = (b"", b"")
        """What stands around the text of its deltas."""

    async def prepare(self, generation: Generation) -> None:
        """Nothing takes long."""

    def events(self, generation: Generation) -> bytes:
        """From ``message_start``, which waits until it is known what the cache had, to the last delta."""
        (choice,) = generation.choices
        frames: list[bytes] = []
        if not self._started:
            if not choice.admitted:
                return b""
            self._started = True
            frames.append(event("message_start", message=self._message(generation, [])))
        text, _, _ = choice.take()
        for said in [Content(text)] if choice.reading is None and text else _news(choice):
            self._say(said, frames)
        return b"".join(frames)

    def closing(self, generation: Generation) -> bytes:
        frames: list[bytes] = []
        self._close(frames)
        reason = self._reason(generation.choices[0])
        frames += (event("message_delta", delta=reason, usage=self._usage(generation)), event("message_stop"))
        return b"".join(frames)

    def answer(self, generation: Generation) -> Json:
        (choice,) = generation.choices
        reading = choice.reading
        blocks: list[Json] = []
        if reading is not None and reading.reasoning:
            blocks.append({"type": "thinking", "thinking": reading.reasoning, "signature": ""})
        text = choice.text if reading is None else reading.content
        if text:
            blocks.append({"type": "text", "text": text})
        for call in reading.calls if reading is not None else ():
            blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": _input(call.arguments)})
        return {**self._message(generation, blocks), **self._reason(choice)}

    # ------------------------------------------------------------------------------------------- blocks

    def _say(self, said: Said, frames: list[bytes]) -> None:
        if isinstance(said, CallBegan):
            self._begin("tool_use", {"id": said.id, "name": said.name, "input": {}}, frames)
        elif isinstance(said, CallEnded):
            self._close(frames)
        elif isinstance(said, CallArguments):
            self._delta(said.text, frames)
        else:
            kind = "text" if isinstance(said, Content) else "thinking"
            if self._open != kind:
                self._begin(kind, {"text": ""} if kind == "text" else {"thinking": "", "signature": ""}, frames)
            self._delta(said.text, frames)

    def _begin(self, kind: str, fields: Json, frames: list[bytes]) -> None:
        self._close(frames)
        self._open, self._index = kind, self._index + 1
        frames.append(event("content_block_start", index=self._index, content_block={"type": kind, **fields}))
        name, field = _BLOCKS[kind]
        whole = event("content_block_delta", index=self._index, delta={"type": name, field: _PLACE})
        before, _, after = whole.partition(_PLACED)
        self._around = before, after

    def _delta(self, text: str, frames: list[bytes]) -> None:
        before, after = self._around
        frames += (before, _encode(text), after)

    def _close(self, frames: list[bytes]) -> None:
        if not self._open:
            return
        if self._open == "thinking":
            frames.append(
                event("content_block_delta", index=self._index, delta={"type": "signature_delta", "signature": ""})
            )
        frames.append(event("content_block_stop", index=self._index))
        self._open = ""

    # ------------------------------------------------------------------------------------------- the whole

    def _message(self, generation: Generation, blocks: list[Json]) -> Json:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._service.model.name,
            "content": blocks,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(generation),
        }

    def _usage(self, generation: Generation) -> Json:
        """What the cache had is no part of ``input_tokens``, as Anthropic counts."""
        prompt, completion, cached = generation.usage
        return {
            "input_tokens": prompt - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": completion,
            "output_tokens_details": {"thinking_tokens": reasoning_tokens(generation)},
        }

    def _reason(self, choice: Choice) -> Json:
        stopped_by = choice.stopped_by if choice.reason == "stop" else None
        reason = "end_turn"
        if choice.reason == "length":
            cut = choice.tokens < self._max_tokens
            reason = "model_context_window_exceeded" if cut else "max_tokens"
        elif choice.reading is not None and choice.reading.calls:
            reason = "tool_use"
        elif stopped_by is not None:
            reason = "stop_sequence"
        return {"stop_reason": reason, "stop_sequence": stopped_by if reason == "stop_sequence" else None}


def _news(choice: Choice) -> list[Said]:
    return choice.reading.take() if choice.reading is not None else []


def _input(arguments: str) -> Json:
    """Arguments that were cut off, or are no JSON, cannot be shown as an object."""
    try:
        return _object(arguments)
    except (msgspec.DecodeError, RecursionError):
        return {}
