"""The best class leads: what is to come of its prompts, and how all others make room for them in a step."""

from __future__ import annotations

import msgspec

from stepwell.core.plan import StepPlan
from stepwell.core.protocols import PolicyEvent, RequestView, SchedulerView
from stepwell.core.types import RequestId
from stepwell.policies.line import Rank
from stepwell.policies.toolkit import Admission, with_watermark

MANY = 16
"""Where so many requests are to come, a step may be theirs alone."""


class Leading:
    """Live requests of rank 0 whose first token is to come (or who must be computed again)."""

    def __init__(self) -> None:
        self._coming: dict[RequestId, RequestView] = {}
        self.live = 0
        """Requests of rank 0 that have not ended."""

    def observe(self, event: PolicyEvent) -> None:
        """Take notice of an event; a policy passes every one on."""
        request = event.request
        if request.rank != 0:
            return
        if event.kind == "arrived" or event.kind == "preempted":
            self._coming[request.id] = request
            self.live += event.kind == "arrived"
        elif event.kind == "finished":
            self._coming.pop(request.id, None)
            self.live -= 1

    def tokens(self, most: int) -> int:
        """Tokens of theirs that are still to be computed, ``most`` at most; not counted where there are too many."""
        coming, tokens, count = self._coming, 0, 0
        begun: list[RequestId] = []
        for request in coming.values():
            if _begun(request):
                begun.append(request.id)
                continue
            tokens, count = tokens + request.pending, count + 1
            if count == MANY:
                tokens = most
                break
        for id in begun:
            del coming[id]
        return min(tokens, most)

    def computed_by(self, plan: StepPlan) -> bool:
        """Whether the plan computes any of them."""
        return any(self._comes(id) for id, _ in (*plan.admit, *plan.slices))

    def _comes(self, id: RequestId) -> bool:
        request = self._coming.get(id)
        return request is not None and not _begun(request)


def _begun(request: RequestView) -> bool:
    """Whether its first token is there, and only the next one to be computed."""
    return request.pending == 1 and request.generated > 0


def holding(plan: StepPlan, view: SchedulerView, held: list[RequestView]) -> StepPlan:
    """The same plan, but ``held`` requests that decode, or were held before, sit this step out."""
    out = {item.request for item in plan.preempt} | set(plan.hold)
    hold = [request.id for request in held if request.id in view.decoding and request.id not in out]
    ids = {request.id for request in held}
    slices = [part for part in plan.slices if part[0] not in ids]
    if not hold and len(slices) == len(plan.slices):
        return plan
    return msgspec.structs.replace(plan, hold=[*plan.hold, *hold], slices=slices, repeat=0)


def others_decoding(view: SchedulerView, rank: Rank) -> list[RequestView]:
    """Who decodes, or was held, and is not of the best class (``rank(...)[0]`` above 0)."""
    running = [*view.decoding.values(), *[each for each in view.loose.values() if each.pending == 1]]
    return [each for each in running if rank(each, view.now_ns)[0] > 0]


def with_spare(rank: Rank, share: float) -> Admission:
    """As ``with_watermark``, but others than the best class leave a ``share`` of the pages free besides.

    So whoever is of the best class finds room at once, and nobody must be sent away first.
    """
    parts = round(share * 1_000_000)

    def missing(view: SchedulerView, request: RequestView, bound: int, alone: bool) -> int:
        if not alone and rank(request, view.now_ns)[0] > 0:
            bound += view.total_pages * parts // 1_000_000
        return with_watermark(view, request, bound, alone)

    return missing
