"""Classes' shares of a step's token budget: what prefills of each may still take in the step being planned."""

from __future__ import annotations

from stepwell.core.protocols import RequestView, SchedulerView


class Shares:
    """For one plan.  Prefills of a class may not take more than its ``budget_share`` while others have work."""

    __slots__ = ("_used", "_view")

    def __init__(self, view: SchedulerView) -> None:
        self._view = view
        self._used: dict[str, int] = {}

    def left(self, request: RequestView) -> int:
        """Tokens that the class of ``request`` may still take in this step."""
        return self._view.prefill_limit(request) - self._used.get(request.klass, 0)

    def take(self, request: RequestView, tokens: int) -> None:
        """The plan gives ``request`` so many; a negative number: it takes them back."""
        self._used[request.klass] = self._used.get(request.klass, 0) + tokens
