"""When a request is due: the part that policies share which order by deadline."""

from __future__ import annotations

from typing import Literal

from stepwell.core.protocols import RequestView
from stepwell.policies.victims import PreemptChoice

Gives = Literal["swap", "recompute", "auto", "never"]
"""How a running request gives way to a more urgent one, if it does."""


def due_ns(request: RequestView, otherwise_ns: int) -> int:
    """When its first token is due: by its class's objective (``otherwise_ns`` where it has none), or before it expires.

    It does not change while the request lives, so whoever came long before others is before them in the end.
    """
    due = request.arrival_ns + (request.ttft_ns or otherwise_ns)
    return min(due, request.expires_ns) if request.expires_ns else due


def mode_of(gives: Gives) -> PreemptChoice:
    """How to preempt when pages run out, which even ``never`` must."""
    return "recompute" if gives == "never" else gives
