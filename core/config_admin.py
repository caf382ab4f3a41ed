"""Settings of the operator's routes, and of what an operator looks at."""

from __future__ import annotations

from typing import Annotated

import msgspec

from stepwell.core.config_types import Digest, Name, Seconds

ADMIN_TOKEN = "STEPWELL_ADMIN_TOKEN"
"""The environment variable that ``stepwell serve`` and ``stepwell admin`` take a token from."""


class AdminConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Who may operate the server, and where.  Without any token: whoever is on this machine, if there are no keys."""

    digests: tuple[Digest, ...] = ()
    """Of the tokens that open ``/admin/``; more than one while a token is replaced."""
    token_file: str = ""
    """A file whose first line is one more such token; empty: none."""
    host: Name = "127.0.0.1"
    """The address of a port of its own."""
    port: Annotated[int, msgspec.Meta(ge=-1, le=65_535)] = -1
    """A port of its own for ``/admin/``, which is then not at ``server.port``; 0: any free one; -1: none."""
    metrics: bool = False
    """``/metrics`` is at that port too, and not at ``server.port``."""
    journal_folder: str = ""
    """Where a journal is written that is switched on while serving; empty: where ``--journal`` says, or nowhere."""
    events_kept: Annotated[int, msgspec.Meta(ge=16, le=1_000_000)] = 4096
    """Turns of the scheduler that ``/admin/events`` can go back."""
    event_listeners: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 8
    """Who may listen to them at once."""


class TelemetryConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Metrics and traces."""

    tenant_labels: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 50
    """Tenants that have a label of their own in the metrics; all others are ``other``."""
    traces: str = ""
    """Where spans are sent: an OTLP collector over HTTP, such as ``http://127.0.0.1:4318/v1/traces``; empty: none are
    made.  Needs the extra ``otel``."""
    sample: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1.0
    """Part of the requests that have a span; a client's own ``traceparent`` decides for its request."""
    service_name: Name = "stepwell"
    """What a trace calls this server."""
    span_queue: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 2048
    """Spans that wait to be sent; what comes then is dropped, and nobody waits for it."""
    timeout_s: Seconds = 10.0
    """For one batch of spans to be sent, at most."""
