"""The waiting line as a scraper sees it: for what its requests wait, and for how long."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from prometheus_client.metrics_core import Metric

from stepwell.core.metrics_families import Families, by_one
from stepwell.core.types import NS_PER_S, RequestId


class Waiter(Protocol):
    """A live request."""

    @property
    def klass(self) -> str: ...
    @property
    def arrival_ns(self) -> int: ...
    @property
    def admitted_ns(self) -> int:
        """-1: never."""
        ...


class Deferred:
    """Choices of a prompt that another request computes: they wait for it, and not for room."""

    def __init__(self) -> None:
        self._by_parent: dict[RequestId, dict[RequestId, None]] = {}
        self._parent: dict[RequestId, RequestId] = {}

    def __len__(self) -> int:
        return len(self._parent)

    def add(self, request: RequestId, parent: RequestId) -> None:
        self._by_parent.setdefault(parent, {})[request] = None
        self._parent[request] = parent

    def end(self, request: RequestId) -> None:
        """It is there no more.  If others waited for it, the first of them computes the prompt for the rest."""
        parent = self._parent.pop(request, 0)
        if parent:
            del self._by_parent[parent][request]
        heirs = list(self.computed(request))
        for heir in heirs[1:]:
            self.add(heir, heirs[0])

    def computed(self, parent: RequestId) -> Iterable[RequestId]:
        """Its prompt is: they wait like everybody else."""
        children = self._by_parent.pop(parent, {})
        for child in children:
            del self._parent[child]
        return children


def queue_families(
    make: Families, now_ns: int, waiting: int, deferred: int, live: Mapping[RequestId, Waiter], classes: Iterable[str]
) -> Iterable[Metric]:
    """``live`` in order of arrival; ``waiting`` of them do, preempted ones included."""
    yield make.gauge("vllm:num_requests_waiting", "Requests in line, preempted ones included.", waiting)
    reasons = {"capacity": float(waiting - deferred), "deferred": float(deferred)}
    yield make.gauges("vllm:num_requests_waiting_by_reason", "The same, by what for.", ["reason"], by_one(reasons))
    ages = dict.fromkeys(classes, 0.0)
    looked_for = dict(ages)
    for each in live.values():
        if each.admitted_ns < 0 and looked_for.pop(each.klass, None) is not None:
            ages[each.klass] = max(now_ns - each.arrival_ns, 0) / NS_PER_S
            if not looked_for:
                break
    yield make.gauges(
        "stepwell:queue_age_seconds", "Of the oldest that was never admitted, by class.", ["class"], by_one(ages)
    )
