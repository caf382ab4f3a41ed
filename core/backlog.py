"""The bounded waiting line: how many never-started requests there are, and whether one more may enter.

It knows the classes and tenants, and so what a request has from them, and how many of each class live.

Requests that were preempted do not count: they were admitted once and are not refused afterwards.
"""

from __future__ import annotations

from stepwell.core.instructions import Rejected
from stepwell.core.limits import ClassLimits, SchedulerLimits
from stepwell.core.request import Request
from stepwell.core.types import RequestId


class _Section:
    """One class: what waits of it for a first admission, how much may (``share``), and what its requests have of it."""

    __slots__ = ("aging_ns", "limits", "requests", "share", "token_share", "tokens", "tpot_ns", "ttft_ns")

    def __init__(self, limits: ClassLimits, max_waiting: int, max_tokens: int) -> None:
        self.limits = limits
        self.ttft_ns, self.tpot_ns, self.aging_ns = limits.ttft_ns, limits.tpot_ns, limits.aging_ns
        self.share = int(limits.queue_share * max_waiting)
        self.token_share = int(limits.queue_share * max_tokens)
        self.requests = 0
        self.tokens = 0


class Backlog:
    """Counts requests and prompt tokens that wait for their first admission, in all and by class."""

    __slots__ = ("_max_tokens", "_max_waiting", "_sections", "_weights", "live", "requests", "tokens")

    def __init__(self, limits: SchedulerLimits) -> None:
        self._max_waiting, self._max_tokens = limits.max_waiting, limits.max_waiting_tokens
        self._sections = {each.name: _Section(each, self._max_waiting, self._max_tokens) for each in limits.classes}
        self._weights = {each.name: each.weight for each in limits.tenants}
        self.live = {each.name: 0 for each in limits.classes}
        """Requests of each class, wherever they are."""
        self.requests = 0
        self.tokens = 0

    def klass(self, name: str) -> ClassLimits | None:
        """The class of that name."""
        section = self._sections.get(name)
        return None if section is None else section.limits

    def in_line(self) -> dict[str, int]:
        """Requests of each class that were never admitted."""
        return {name: section.requests for name, section in self._sections.items()}

    def endow(self, request: Request) -> None:
        """It is there: give it what its class and its tenant say.  A class that is not known any more says nothing."""
        section = self._sections.get(request.klass)
        if section is not None:
            request.ttft_ns, request.tpot_ns, request.aging_ns = section.ttft_ns, section.tpot_ns, section.aging_ns
            self.live[request.klass] += 1
        if self._weights:
            request.weight = self._weights.get(request.tenant, 1.0)

    def end(self, request: Request) -> None:
        """It is there no more."""
        if request.klass in self.live:
            self.live[request.klass] -= 1

    def refusal(self, id: RequestId, klass: str, prompt_tokens: int) -> Rejected | None:
        """Why a request of ``klass`` (a known one) may not enter now; None if it may."""
        section = self._sections[klass]
        if self._max_waiting:
            if self.requests >= self._max_waiting:
                return Rejected(id, "queue_full", self._max_waiting)
            if section.requests >= section.share:
                return Rejected(id, "class_queue_full", section.share)
        if self._max_tokens:
            if self.tokens + prompt_tokens > self._max_tokens:
                return Rejected(id, "queue_tokens_full", self._max_tokens)
            if section.tokens + prompt_tokens > section.token_share:
                return Rejected(id, "class_queue_tokens_full", section.token_share)
        return None

    def ahead(self, rank: int) -> tuple[int, int]:
        """Requests, and tokens of their prompts, of classes that are served before a rank or with it."""
        ahead = [section for section in self._sections.values() if section.limits.rank <= rank]
        return sum([each.requests for each in ahead]), sum([each.tokens for each in ahead])

    def add(self, request: Request) -> None:
        section = self._sections[request.klass]
        self.requests += 1
        self.tokens += request.prompt_tokens
        section.requests += 1
        section.tokens += request.prompt_tokens

    def remove(self, request: Request) -> None:
        """It was admitted for the first time, or ended without."""
        section = self._sections[request.klass]
        self.requests -= 1
        self.tokens -= request.prompt_tokens
        section.requests -= 1
        section.tokens -= request.prompt_tokens
