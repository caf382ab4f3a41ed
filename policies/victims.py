"""Who leaves the device, how, and what comes free by it: the victim part and the swap-or-recompute part of a policy."""

from __future__ import annotations

from stepwell.core.plan import Part, Preemption, StepPlan
from stepwell.core.protocols import RequestView, SchedulerView
from stepwell.core.types import SWAPPING_IN, PreemptMode, RequestId
from stepwell.policies.line import Rank


def may_go(request: RequestView) -> bool:
    """Whether a running request may be sent away at all."""
    return not request.protected and request.state is not SWAPPING_IN


def preempt_mode(view: SchedulerView, victim: RequestView, mode: PreemptMode, host_pages: int) -> PreemptMode:
    """``mode``, or recompute where ``host_pages`` (free ones left) cannot hold the victim."""
    if mode == "swap" and -(-victim.computed // view.page_size) <= host_pages:
        return "swap"
    return "recompute"


class Departures:
    """Sends requests away, one after another, and counts what that frees.

    ``freed`` pages are there in the same step; ``coming`` ones (those of steps in flight among them) after it.
    """

    __slots__ = ("coming", "freed", "host_pages", "items", "mode", "view")

    def __init__(self, view: SchedulerView, mode: PreemptMode) -> None:
        self.view = view
        self.mode = mode
        self.freed = 0
        self.coming = view.returning_pages
        self.host_pages = view.free_host_pages
        self.items: list[Preemption] = []

    def send(self, victim: RequestView, reason: str, beneficiary: RequestId) -> None:
        """Send ``victim`` away for ``beneficiary``, by swap if that is wished and the host tier has room."""
        view = self.view
        mode = preempt_mode(view, victim, self.mode, self.host_pages)
        pages = view.exclusive_pages(victim)
        if mode == "swap":
            self.host_pages -= -(-victim.computed // view.page_size)
        if mode == "swap" or not victim.ready:
            self.coming += pages
        else:
            self.freed += pages
        self.items.append(Preemption(victim.id, mode, reason, beneficiary))


def relieve(
    view: SchedulerView, rank: Rank, mode: PreemptMode, need: int, slices: list[Part], decode: bool
) -> StepPlan:
    """Pages are short: the worst-ranked running requests give way, and whoever still lacks a page sits this step out.

    Pages that are on their way back already count, so that one shortage never sends more than it must; the best-ranked
    request is never sent.  Nobody is admitted in such a step.
    """
    now_ns = view.now_ns
    tokens = dict(slices)
    wants = {request.id: 1 for request in view.growing()} if decode else {}
    for request in view.loose.values():
        if request.id in tokens:
            wants[request.id] = view.slice_pages(request, tokens[request.id])
    running = sorted(
        [*view.decoding.values(), *view.loose.values()], key=lambda request: rank(request, now_ns), reverse=True
    )
    leaving = Departures(view, mode)
    for victim in running[:-1]:
        if need <= view.free_pages + leaving.freed + leaving.coming:
            break
        if not may_go(victim):
            continue
        leaving.send(victim, "pages ran out", running[-1].id)
        need -= wants.pop(victim.id, 0)
        tokens.pop(victim.id, None)
    free = view.free_pages + leaving.freed
    hold: list[RequestId] = []
    for request in reversed(running):
        pages = wants.get(request.id, 0)
        if pages <= free:
            free -= pages
        elif request.id in view.decoding:
            hold.append(request.id)
        else:
            del tokens[request.id]
    kept = [(id, count) for id, count in slices if id in tokens]
    return StepPlan(decode=decode, preempt=leaving.items, hold=hold, slices=kept)
