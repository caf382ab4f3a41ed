"""What a predictor said of each live request: the part that policies share which order by work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from stepwell.core.protocols import PolicyEvent, Predictor, Remembering, RequestView
from stepwell.core.types import RequestId
from stepwell.policies.aging import Aging
from stepwell.policies.line import Rank


class GuessOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How output lengths are guessed."""

    predictor: str = "quantile"
    """Guesses output lengths: a registered name of kind predictors."""
    predictor_options: Mapping[str, object] = {}


class WorkOptions(GuessOptions, frozen=True, forbid_unknown_fields=True):
    """How work is guessed, and when age overrules it."""

    output_cost: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 16
    """Prompt tokens that are as much work as one output token."""
    aging_s: Annotated[float, msgspec.Meta(ge=0, le=1_000_000_000)] = 30.0
    """The oldest request comes first at this age, and gives way to nobody."""


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


class WorkLine:
    """A line in the order of guessed work, ``work``; the oldest request ages to the front."""

    def __init__(self, work: Rank, predictor: Predictor, age_ns: int) -> None:
        self.guesses = Guesses(predictor)
        self.queue = Aging(work, age_ns)
        self.line = self.queue.line
        self.rank = self.queue.rank

    def observe(self, event: PolicyEvent) -> None:
        """Take notice of an event; a policy passes every one on."""
        self.guesses.observe(event)
        self.queue.observe(event)

    def load(self, data: Any) -> None:
        """Take over what ``guesses`` dumped."""
        self.guesses.load(data)
        self.queue.reorder()
