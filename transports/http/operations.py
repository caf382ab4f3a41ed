"""What each route does and takes, one line each, for ``openapi``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from stepwell.transports.http.admin import Pinned, Swap
from stepwell.transports.http.requests import ChatRequest, CompletionRequest

Json = dict[str, Any]


class Operation(msgspec.Struct, frozen=True):
    """``body`` is the struct that it is read with; ``streams``: it answers in events too, if it is asked to."""

    summary: str
    body: type | None = None
    streams: bool = False
    answer: str = "application/json"
    status: int = 200
    query: Mapping[str, Json] = {}


OPERATIONS: Mapping[str, Operation] = {
    "POST /v1/chat/completions": Operation("Answer a chat.", ChatRequest, streams=True),
    "POST /v1/completions": Operation("Complete texts.", CompletionRequest, streams=True),
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
}
