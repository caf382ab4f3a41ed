"""Who leaves the device, how, and what comes free by it: the victim part and the swap-or-recompute part of a policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import msgspec

from stepwell.core.plan import Part, Preemption, StepPlan
from stepwell.core.protocols import Promises, RequestView, SchedulerView
from stepwell.core.types import SWAPPING_IN, PreemptMode, RequestId
from stepwell.policies.line import Key, Rank

PreemptChoice = Literal["swap", "recompute", "auto"]
"""How victims leave: always the same way, or each as it costs least by the measured speeds (``auto``)."""

VictimRule = Callable[[SchedulerView, RequestView], int]
"""Of those of the worst class (``rank(...)[0]``), the smallest number gives way first."""

VictimOption = Literal["last", "least-computed", "exclusive-pages"]


def least_computed(view: SchedulerView, request: RequestView) -> int:
    """Whoever has the least computed: the least is lost, or copied."""
    return request.computed


def pages_over_time_left(view: SchedulerView, request: RequestView) -> int:
    """Whoever would hold the most for the least: -(B / T) (1 - O / M), in parts of a million.

    B are the pages that come free, not those that others share; T the tokens that bringing it back would compute; O of
    M output tokens are there, so that somebody near the end, whose pages soon come free by themselves, is spared.
    """
    left = request.max_tokens - request.generated
    return -(view.exclusive_pages(request) * left * 1_000_000 // (max(1, request.computed) * request.max_tokens))


RULES: Mapping[VictimOption, VictimRule | None] = {
    "last": None,
    "least-computed": least_computed,
    "exclusive-pages": pages_over_time_left,
}
"""What an option of a policy means; None: the worst by rank."""


Ranked = list[tuple[Key, RequestView]]
"""Requests with their ranks."""


def worst_first(view: SchedulerView, ranked: Ranked, rule: VictimRule | None) -> Ranked:
    """The same in the order in which they give way."""
    if rule is None:
        return sorted(ranked, key=lambda each: each[0], reverse=True)
    return sorted(ranked, key=lambda each: (-each[0][0], rule(view, each[1]), -each[1].id))


Relief = Callable[[SchedulerView, Rank, PreemptChoice, int, list[Part], bool, VictimRule | None], StepPlan]
"""``(view, rank, mode, need, slices, decode, rule)``: what to do in a step that needs more pages than are free."""


def may_go(request: RequestView) -> bool:
    """Whether a running request may be sent away at all."""
    return not request.protected and request.state is not SWAPPING_IN


def preempt_mode(view: SchedulerView, victim: RequestView, mode: PreemptChoice, host_pages: int) -> PreemptMode:
    """What ``mode`` means for the victim: recompute where ``host_pages`` (free ones left) cannot hold it."""
    if mode == "recompute" or -(-victim.computed // view.page_size) > host_pages:
        return "recompute"
    if mode == "auto" and view.recompute_ns(victim) < view.swap_ns(victim):
        return "recompute"
    return "swap"


def promised(promises: Promises, mode: PreemptChoice) -> Promises:
    """``promises`` of a policy whose ``mode`` is an option: with ``swap``, work is kept."""
    return msgspec.structs.replace(promises, keeps_work=mode == "swap")


class Departures:
    """Sends requests away, one after another, and counts what that frees.

    ``freed`` pages are there in the same step; ``coming`` ones (those of steps in flight among them) after it.
    """

    __slots__ = ("coming", "freed", "host_pages", "items", "mode", "view")

    def __init__(self, view: SchedulerView, mode: PreemptChoice) -> None:
        self.view = view
        self.mode = mode
        self.freed = 0
        self.coming = view.returning_pages
        self.host_pages = view.free_host_pages
        self.items: list[Preemption] = []

    def send(self, victim: RequestView, reason: str, beneficiary: RequestId) -> None:
        """Send ``victim`` away for ``beneficiary``, by swap if that is wished, or pays, and the host tier has room."""
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
    view: SchedulerView,
    rank: Rank,
    mode: PreemptChoice,
    need: int,
    slices: list[Part],
    decode: bool,
    rule: VictimRule | None = None,
) -> StepPlan:
    """Pages are short: the worst running requests give way, and whoever still lacks a page sits this step out.

    Pages that are on their way back already count, so that one shortage never sends more than it must; the best-ranked
    request is never sent.  Nobody is admitted in such a step.
    """
    tokens = dict(slices)
    wants = {request.id: 1 for request in view.growing()} if decode else {}
    for request in view.loose.values():
        if request.id in tokens:
            wants[request.id] = view.slice_pages(request, tokens[request.id])
    now_ns = view.now_ns
    ranked = [(rank(request, now_ns), request) for request in (*view.decoding.values(), *view.loose.values())]
    ranked = worst_first(view, ranked, None)
    victims = ranked[:-1] if rule is None else worst_first(view, ranked[:-1], rule)
    running = [request for _, request in ranked]
    leaving = Departures(view, mode)
    for _, victim in victims:
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
    if slices and not (kept or leaving.items or (decode and len(hold) < len(view.decoding))):
        kept = _instead(view, reversed(running), sum([count for _, count in slices]))
    return StepPlan(decode=decode, preempt=leaving.items, hold=hold, slices=kept)


def _instead(view: SchedulerView, running: Iterable[RequestView], budget: int) -> list[Part]:
    """Slices as long as there are pages for, where nobody can give way and no whole one fits.

    Whoever may not be sent away has all its pages; another policy may have left prefills that have theirs for a slice.
    """
    slices: list[Part] = []
    free = view.free_pages
    for request in running:
        room = request.capacity + free * view.page_size - request.computed
        tokens = min(request.pending, room, budget, view.prefill_limit(request))
        if request.id in view.loose and request.state is not SWAPPING_IN and tokens > 0:
            slices.append((request.id, tokens))
            free -= view.slice_pages(request, tokens)
            budget -= tokens
    return slices
