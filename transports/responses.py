"""OpenAI's Responses, for text: what a client may ask for, and the events that one answer becomes.

No sockets in here.  ``ResponseEvents`` is asked for what is new and answers with events in order, each with the next
sequence number; asking late gives fewer and longer deltas.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Raw

from stepwell.core.errors import StepwellError, UserError
from stepwell.transports.chat import Message
from stepwell.transports.errors import RequestError
from stepwell.transports.generation import Generation
from stepwell.transports.http.decoding import SMALL, decode, items_of
from stepwell.transports.http.messages import messages_of
from stepwell.transports.http.requests import (
    MAX_MESSAGES,
    NOTHING,
    ChatMessage,
    Part,
    Sampled,
    Whole,
)
from stepwell.transports.service import Service

Json = dict[str, Any]
Metadata = Annotated[dict[str, Annotated[str, msgspec.Meta(max_length=512)]], msgspec.Meta(max_length=16)]
LaneName = Annotated[str, msgspec.Meta(max_length=128)]


class InputItem(msgspec.Struct, gc=False):
    """One of ``input``: a message; other kinds are refused by name."""

    type: str = "message"
    role: str = "user"
    content: str | list[Part] | None = None


class Create(Sampled, kw_only=True):
    """``response.create``: the body of a create request, and the lane it goes into."""

    input: Raw = NOTHING
    """A text, or a list of ``InputItem``."""
    instructions: str | None = None
    max_output_tokens: Whole | None = None
    previous_response_id: str | None = None
    metadata: Metadata | None = None
    stream_id: LaneName | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    top_logprobs: Raw = NOTHING
    generate: bool | None = None


class _Echoed(msgspec.Struct):
    """What is told back of a request.  Nothing else is kept of it: a single ``Raw`` would be the whole message."""

    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str] | None
    stream_id: str | None
    temperature: float | None
    top_p: float | None


INPUT: msgspec.json.Decoder[str | list[InputItem] | None] = msgspec.json.Decoder(str | list[InputItem] | None)


def chat_of(asked: Create) -> list[Message]:
    """The chat that ``input`` and ``instructions`` make."""
    if asked.previous_response_id:
        raise RequestError(
            "responses are not kept here; send the whole conversation as input",
            field="previous_response_id",
            code="previous_response_not_found",
        )
    if asked.n is not None and asked.n != 1:
        raise UserError("one response is one answer", field="n")
    if asked.generate is False:
        raise UserError("warming up without an answer is not supported", field="generate")
    if memoryview(asked.input).nbytes > SMALL and memoryview(asked.input)[0] == ord("["):
        items_of(asked.input, MAX_MESSAGES, "input")
    said = decode(asked.input, INPUT, "input")
    if not said:
        raise UserError("must be text or a list of messages, and not empty", field="input")
    messages = messages_of([ChatMessage("system", asked.instructions)]) if asked.instructions else []
    if isinstance(said, str):
        return messages + messages_of([ChatMessage("user", said)])
    for index, item in enumerate(said):
        if item.type != "message":
            raise UserError(f"only messages are understood, not {item.type!r}", field=f"input[{index}].type")
    roles = ["system" if item.role == "developer" else item.role for item in said]
    items = [ChatMessage(role, item.content) for role, item in zip(roles, said, strict=True)]
    return messages + messages_of(items, "input")


class ResponseEvents:
    """The events of one response, from ``created`` to its one end."""

    def __init__(self, service: Service, asked: Create, tier: str = "default") -> None:
        self.id = f"resp_{uuid.uuid4().hex}"
        self.cancelled = False
        """By the client's wish."""
        self.over = False
        """The last event was given."""
        self._service = service
        self._tier = tier
        self._asked = msgspec.convert(asked, _Echoed, from_attributes=True)
        self._item = f"msg_{uuid.uuid4().hex}"
        self._created_at = int(time.time())
        self._next = 0
        self._begun = False

    def accepted(self, generation: Generation) -> Iterator[Json]:
        """It is in the line; and says so if it has to wait there."""
        admitted = generation.choices[0].admitted
        created = self._whole("response.created", "in_progress" if admitted else "queued", generation)
        # In this event only: everywhere else the client gets back what it sent.
        created["response"]["metadata"] = {**(self._asked.metadata or {}), "stepwell_request": generation.requests}
        yield created
        if not admitted:
            waiting, wait_ms = self._service.metrics.waiting, self._service.wait_ns // 1_000_000
            queued = self._whole("response.queued", "queued", generation)
            yield {**queued, "queue_position": waiting, "estimated_wait_ms": wait_ms}

    def news(self, generation: Generation) -> Iterator[Json]:
        """What is new; the last call is the one after the choice has ended."""
        choice = generation.choices[0]
        # Looked at in one moment: each event is sent before the next is asked for, and meanwhile the answer goes on.
        begins, error, reason = choice.admitted and not self._begun, choice.error, choice.reason
        text, _, _ = choice.take()
        if begins:
            yield from self._begin(generation)
        if text:
            yield self._part("response.output_text.delta", delta=text, logprobs=[])
        if error is not None:
            yield self._failed(generation, error)
        elif reason:
            yield from self._end(generation)

    # ------------------------------------------------------------------------------------------- events

    def _begin(self, generation: Generation) -> Iterator[Json]:
        self._begun = True
        yield self._whole("response.in_progress", "in_progress", generation)
        item = {"id": self._item, "type": "message", "role": "assistant", "status": "in_progress", "content": []}
        yield self._event("response.output_item.added", output_index=0, item=item)
        yield self._part("response.content_part.added", part=_text_part(""))

    def _end(self, generation: Generation) -> Iterator[Json]:
        choice = generation.choices[0]
        complete = choice.reason == "stop"
        if self._begun:
            yield self._part("response.output_text.done", text=choice.text, logprobs=[])
            yield self._part("response.content_part.done", part=_text_part(choice.text))
            item = self._output(choice.text, complete)
            yield self._event("response.output_item.done", output_index=0, item=item)
        self.over = True
        if complete:
            yield self._whole("response.completed", "completed", generation)
        else:
            yield self._whole("response.incomplete", "cancelled" if self.cancelled else "incomplete", generation)

    def _failed(self, generation: Generation, error: StepwellError) -> Json:
        self.over = True
        refusal = self._service.refusal(error)
        made = self._whole("response.failed", "failed", generation)
        made["response"]["error"] = {"code": refusal.code, "message": refusal.message}
        return made

    def _event(self, kind: str, **fields: Any) -> Json:
        number, self._next = self._next, self._next + 1
        made = {"type": kind, "sequence_number": number, **fields}
        if self._asked.stream_id is not None:
            made["stream_id"] = self._asked.stream_id
        return made

    def _part(self, kind: str, **fields: Any) -> Json:
        return self._event(kind, item_id=self._item, output_index=0, content_index=0, **fields)

    def _output(self, text: str, complete: bool) -> Json:
        status = "completed" if complete else "incomplete"
        content = [_text_part(text)]
        return {"id": self._item, "type": "message", "role": "assistant", "status": status, "content": content}

    def _whole(self, kind: str, status: str, generation: Generation) -> Json:
        asked, choice = self._asked, generation.choices[0]
        ended = status in ("completed", "incomplete", "cancelled", "failed")
        response = {
            "id": self.id,
            "object": "response",
            "created_at": self._created_at,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "metadata": asked.metadata or {},
            "model": self._service.model.name,
            "output": [self._output(choice.text, status == "completed")] if ended and self._begun else [],
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "service_tier": self._tier,
            "temperature": asked.temperature,
            "tool_choice": "none",
            "tools": [],
            "top_p": asked.top_p,
            "usage": _usage(generation) if ended else None,
        }
        return self._event(kind, response=response)


def _text_part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(generation: Generation) -> Json:
    prompt, completion, cached = generation.usage
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + completion,
    }
