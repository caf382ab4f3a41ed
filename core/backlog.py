"""The bounded waiting line: how many never-started requests there are, and whether one more may enter.

It knows the classes and tenants, and so what a request has from them, and how many of each class live.

Requests that were preempted do not count: they were admitted once and are not refused afterwards.
"""

from __future__ import annotations

from stepwell.core.instructions import Rejected
from stepwell.core.limits import ClassLimits, SchedulerLimits
from stepwell.core.request import Request
from stepwell.core.types import RequestId


class Backlog:
    """Counts requests and prompt tokens that wait for their first admission, in all and by class."""

    __slots__ = (
        "_by_class", "_classes", "_max_tokens", "_max_waiting", "_objectives", "_shares", "_token_shares",
        "_tokens_by_class", "_weights", "live", "requests", "tokens",
    )  # fmt: skip

    def __init__(self, limits: SchedulerLimits) -> None:
        self._max_waiting, self._max_tokens = limits.max_waiting, limits.max_waiting_tokens
        self._classes = {each.name: each for each in limits.classes}
        self._objectives = {each.name: (each.ttft_ns, each.tpot_ns, each.aging_ns) for each in limits.classes}
        self._shares = {each.name: int(each.queue_share * limits.max_waiting) for each in limits.classes}
        self._token_shares = {each.name: int(each.queue_share * limits.max_waiting_tokens) for each in limits.classes}
        self._weights = {each.name: each.weight for each in limits.tenants}
        self._by_class = {each.name: 0 for each in limits.classes}
        self._tokens_by_class = {each.name: 0 for each in limits.classes}
        self.live = {each.name: 0 for each in limits.classes}
        """Requests of each class, wherever they are."""
        self.requests = 0
        self.tokens = 0

    def klass(self, name: str) -> ClassLimits | None:
        """The class of that name."""
        return self._classes.get(name)

    def in_line(self) -> dict[str, int]:
        """Requests of each class that were never admitted."""
        return dict(self._by_class)

    def endow(self, request: Request) -> None:
        """It is there: give it what its class and its tenant say.  A class that is not known any more says nothing."""
        objectives = self._objectives.get(request.klass)
        if objectives is not None:
            request.ttft_ns, request.tpot_ns, request.aging_ns = objectives
            self.live[request.klass] += 1
        if self._weights:
            request.weight = self._weights.get(request.tenant, 1.0)

    def end(self, request: Request) -> None:
        """It is there no more."""
        if request.klass in self.live:
            self.live[request.klass] -= 1

    def refusal(self, id: RequestId, klass: str, prompt_tokens: int) -> Rejected | None:
        """Why a request of ``klass`` (a known one) may not enter now; None if it may."""
        if self._max_waiting and self.requests >= self._max_waiting:
            return Rejected(id, "queue_full", self._max_waiting)
        if self._max_waiting and self._by_class[klass] >= self._shares[klass]:
            return Rejected(id, "class_queue_full", self._shares[klass])
        if self._max_tokens and self.tokens + prompt_tokens > self._max_tokens:
            return Rejected(id, "queue_tokens_full", self._max_tokens)
        if self._max_tokens and self._tokens_by_class[klass] + prompt_tokens > self._token_shares[klass]:
            return Rejected(id, "class_queue_tokens_full", self._token_shares[klass])
        return None

    def ahead(self, rank: int) -> tuple[int, int]:
        """Requests, and tokens of their prompts, of classes that are served before a rank or with it."""
        ahead = [name for name, klass in self._classes.items() if klass.rank <= rank]
        return sum(self._by_class[each] for each in ahead), sum(self._tokens_by_class[each] for each in ahead)

    def add(self, request: Request) -> None:
        self.requests += 1
        self.tokens += request.prompt_tokens
        self._by_class[request.klass] += 1
        self._tokens_by_class[request.klass] += request.prompt_tokens

    def remove(self, request: Request) -> None:
        """It was admitted for the first time, or ended without."""
        self.requests -= 1
        self.tokens -= request.prompt_tokens
        self._by_class[request.klass] -= 1
        self._tokens_by_class[request.klass] -= request.prompt_tokens
