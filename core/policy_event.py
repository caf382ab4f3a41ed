"""What a policy observes; ``core.protocols`` gives it out with all other interfaces.

A plain class in a module of its own, so that compiled code makes and reads it without a look-up by name.
"""

from __future__ import annotations

from typing import Literal

from stepwell.core.request_view import RequestView

PolicyEventKind = Literal["arrived", "admitted", "preempted", "swapped", "resumed", "refused", "finished"]


class PolicyEvent:
    """Something that happened to ``request``.

    ``preempted``: back in the waiting line, to be recomputed.  ``swapped``: on its way to the host tier.  ``refused``:
    the plan's first item that did not fit; the items after it were not applied either.
    """

    __slots__ = ("kind", "now_ns", "request")

    def __init__(self, kind: PolicyEventKind, request: RequestView, now_ns: int) -> None:
        self.kind: PolicyEventKind = kind
        self.request = request
        self.now_ns = now_ns

    def __repr__(self) -> str:
        return f"PolicyEvent(kind={self.kind!r}, request={self.request!r}, now_ns={self.now_ns})"
