"""Classes' shares of a step's token budget: what prefills of each may still take in the step being planned."""

from __future__ import annotations

from typing import cast

from stepwell.core.protocols import RequestView
from stepwell.core.request import Request
from stepwell.core.view import View


class Shares:
    """For one plan.  Prefills of a class may not take more than its ``budget_share`` while others have work, nor one
    prompt more than ``chunk`` tokens."""

    __slots__ = ("_chunk", "_used", "_view")

    def __init__(self, view: View, chunk: int) -> None:
        self._view = view
        self._chunk = chunk
        self._used: dict[str, int] = {}

    def left(self, request: RequestView) -> int:
        """Tokens that ``request`` may take in this step, by its class and its own bound."""
        left = self._view.prefill_limit(request)
        if self._used:
            left -= self._used.get(cast(Request, request).klass, 0)
        return left if left < self._chunk else self._chunk

    def take(self, request: RequestView, tokens: int) -> None:
        """The plan gives ``request`` so many; a negative number: it takes them back."""
        klass = cast(Request, request).klass
        self._used[klass] = self._used.get(klass, 0) + tokens
