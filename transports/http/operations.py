"""What each route does and takes, one line each, for ``openapi``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from stepwell.core.types import RequestState
from stepwell.transports.http.admin import Pinned, Swap
from stepwell.transports.http.admin_control import Abort, Because, Switch
from stepwell.transports.http.admin_requests import MOST_SHOWN
from stepwell.transports.http.anthropic_requests import CountRequest, MessagesRequest
from stepwell.transports.http.batches import CreateBatch
from stepwell.transports.http.requests import ChatRequest, CompletionRequest
from stepwell.transports.http.tokenizing import DetokenizeRequest, TokenizeRequest
from stepwell.transports.responses.create import Create

Json = dict[str, Any]


class Operation(msgspec.Struct, frozen=True):
    """``body`` is the struct that it is read with; ``streams``: it answers in events too, if it is asked to."""

    summary: str
    body: type | None = None
    streams: bool = False
    answer: str = "application/json"
    status: int = 200
    query: Mapping[str, Json] = {}
    form: Mapping[str, Json] | None = None
    """The fields of a form, which it takes in place of a body."""
    error: str = "Error"
    """The schema of what is refused."""


_WHOLE: Json = {"type": "integer", "minimum": 0}
_RESUMED: Mapping[str, Json] = {"stream": {"type": "boolean"}, "starting_after": {**_WHOLE, "minimum": -1}}
_PAGED: Mapping[str, Json] = {
    "order": {"enum": ["asc", "desc"]},
    "after": {"type": "string"},
    "limit": {**_WHOLE, "minimum": 1, "maximum": 100},
}
_CHOSEN: Mapping[str, Json] = {
    "state": {"enum": [each.value for each in RequestState]},
    "class": {"type": "string"},
    "tenant": {"type": "string"},
    "limit": {**_WHOLE, "minimum": 1, "maximum": MOST_SHOWN},
}
_HEARD: Mapping[str, Json] = {
    **{name: {"type": "string"} for name in ("kinds", "tenant", "class")},
    "request": _WHOLE,
    "after": _WHOLE,
}

_FILE: Mapping[str, Json] = {
    "file": {"type": "string", "format": "binary"},
    "purpose": {"enum": ["batch"]},
    "expires_after[anchor]": {"enum": ["created_at"]},
    "expires_after[seconds]": {"type": "integer", "minimum": 3600, "maximum": 2_592_000},
}

OPERATIONS: Mapping[str, Operation] = {
    "POST /v1/chat/completions": Operation("Answer a chat.", ChatRequest, streams=True),
    "POST /v1/completions": Operation("Complete texts.", CompletionRequest, streams=True),
    "POST /v1/responses": Operation("Make a response: whole, streamed, or in the background.", Create, streams=True),
    "GET /v1/responses/{id}": Operation("A response that is kept, or its events.", streams=True, query=_RESUMED),
    "DELETE /v1/responses/{id}": Operation("Forget it; one that is on its way ends."),
    "POST /v1/responses/{id}/cancel": Operation("End it; harmless if it has ended."),
    "GET /v1/responses/{id}/input_items": Operation("What it answers.", query=_PAGED),
    "POST /v1/messages": Operation(
        "Answer a chat, as Anthropic's API does.", MessagesRequest, streams=True, error="AnthropicError"
    ),
    "POST /v1/messages/count_tokens": Operation(
        "How many tokens such a chat is.", CountRequest, error="AnthropicError"
    ),
    "POST /tokenize": Operation("The tokens of a text or a chat.", TokenizeRequest),
    "POST /detokenize": Operation("The text of tokens.", DetokenizeRequest),
    "POST /v1/files": Operation("Keep a file, with the requests of a batch.", form=_FILE),
    "GET /v1/files": Operation("The files of the tenant.", query={**_PAGED, "purpose": {"type": "string"}}),
    "GET /v1/files/{id}": Operation("What is known of a file."),
    "GET /v1/files/{id}/content": Operation("What is in it.", answer="application/octet-stream"),
    "DELETE /v1/files/{id}": Operation("Delete it."),
    "POST /v1/batches": Operation("Answer the requests of a file beneath all others.", CreateBatch),
    "GET /v1/batches": Operation(
        "The batches of the tenant.", query={name: _PAGED[name] for name in ("after", "limit")}
    ),
    "GET /v1/batches/{id}": Operation("How far it is."),
    "POST /v1/batches/{id}/cancel": Operation("End it; what is answered is kept."),
    "GET /v1/models": Operation("The model that is served."),
    "GET /v1/models/{id:path}": Operation("The same, by name."),
    "GET /health": Operation("Should the process be restarted?"),
    "GET /livez": Operation("The same as /health."),
    "GET /ping": Operation("The same as /health."),
    "GET /ready": Operation("Should requests be sent here now?"),
    "GET /readyz": Operation("The same as /ready."),
    "GET /metrics": Operation("For a Prometheus scraper.", answer="text/plain"),
    "GET /openapi.json": Operation("This description."),
    "GET /admin/scheduler": Operation("Who decides, since when and why, and over how much."),
    "PUT /admin/scheduler": Operation("Another policy, or other options, from the next step on.", Swap),
    "PUT /admin/pins": Operation("Keep the pages of how chats begin.", Pinned),
    "DELETE /admin/pins": Operation("Keep them no longer.", Pinned),
    "POST /admin/pause": Operation("Launch no step.", Because),
    "POST /admin/resume": Operation("Launch steps again.", Because),
    "GET /admin/drain": Operation("How far draining is."),
    "POST /admin/drain": Operation("Take nothing new, and end when what runs has ended."),
    "POST /admin/abort": Operation("End one request, or those of a tenant or a class, or all.", Abort),
    "POST /admin/cache/reset": Operation("Give up what is kept of earlier prompts.", Because),
    "GET /admin/config": Operation("Every setting, and where it came from."),
    "GET /admin/journal": Operation("The journal's state."),
    "POST /admin/journal": Operation("Switch it on or off, or begin a new segment.", Switch),
    "GET /admin/requests": Operation("Who runs and who waits, and why.", query=_CHOSEN),
    "GET /admin/requests/{id}": Operation("One of them, and its life so far."),
    "GET /admin/events": Operation("What happens and is decided, live.", answer="text/event-stream", query=_HEARD),
}
