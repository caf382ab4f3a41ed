"""What a predictor said of each live request: the part that policies share which order by work."""

from __future__ import annotations

from typing import Any

from stepwell.core.protocols import PolicyEvent, Predictor, Remembering, RequestView
from stepwell.core.types import RequestId


class Guesses:
    """Asks once for each request, when it arrives, so that its place in line does not wander; teaches the predictor."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        self._tokens: dict[RequestId, int] = {}

    def observe(self, event: PolicyEvent) -> None:
        """Take notice of an event, before a line does."""
        request = event.request
        if event.kind == "arrived":
            self._tokens[request.id] = max(1, self.predictor.predict(request))
        elif event.kind == "finished":
            del self._tokens[request.id]
            if request.generated > 0:
                self.predictor.learn(request)

    def output(self, request: RequestView) -> int:
        """Output tokens that ``request`` is guessed to have in all."""
        return self._tokens[request.id]

    def left(self, request: RequestView) -> int:
        """Output tokens that it is guessed to lack; 1 for one that has passed its guess."""
        return max(1, self._tokens[request.id] - request.generated)

    def dump(self) -> dict[str, object]:
        """As ``protocols.Remembering``."""
        predictor = self.predictor
        learnt = predictor.dump() if isinstance(predictor, Remembering) else None
        return {"guesses": list(self._tokens.items()), "predictor": learnt}

    def load(self, data: Any) -> None:
        self._tokens = dict(data["guesses"])
        if isinstance(self.predictor, Remembering):
            self.predictor.load(data["predictor"])
