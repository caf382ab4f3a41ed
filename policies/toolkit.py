"""Pure parts that policies are made of.  A policy decides order, victims and how to preempt; ``pack`` does the rest.

``pack`` fills one step, decodes first (Sarathi-Serve, OSDI'24: running requests never stall for a prefill):

1. the decode group, every member one token; if pages run short, the worst-ranked running requests give way;
2. running prefills go on, in order, as far as the token budget allows;
3. only if nobody had to give way: the line is admitted strictly in order until the first that does not fit.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.core.plan import Obstacle, Part, Preemption, StepPlan
from stepwell.core.protocols import RequestView, SchedulerView
from stepwell.core.types import FOREVER, NS_PER_S, SWAPPED, SWAPPING_IN, WAITING, PreemptMode, RequestId
from stepwell.policies.line import OrderedLine, Rank, by_arrival

__all__ = ["OrderedLine", "Rank", "by_arrival", "pack", "seconds"]

DECODE_ON = StepPlan(repeat=FOREVER)
"""The plan of a quiet step: the decode group, until something happens."""

WATERMARK = 100
"""One page in so many stays free when a request is admitted beside running ones, so that these can grow a while.

vLLM's first block manager kept the same share (``watermark=0.01``): without it a newcomer is soon preempted again.
"""


def seconds(value: float) -> int:
    """Integer nanoseconds of a time in seconds given in options."""
    return round(value * NS_PER_S)


def preempt_mode(view: SchedulerView, victim: RequestView, mode: PreemptMode, host_pages: int) -> PreemptMode:
    """``mode``, or recompute where ``host_pages`` (free ones left) cannot hold the victim."""
    if mode == "swap" and -(-victim.computed // view.page_size) <= host_pages:
        return "swap"
    return "recompute"


def pack(
    view: SchedulerView,
    line: OrderedLine,
    *,
    rank: Rank = by_arrival,
    mode: PreemptMode = "recompute",
    yields: bool = False,
    seats: int | None = None,
    decode: bool = True,
) -> StepPlan:
    """Fill the next step; see the module.

    ``rank`` orders running requests (the worst gives way first); ``mode`` is how, swap falling back to recompute when
    the host tier is full.  ``yields``: a running request also gives way to a waiting one of strictly better class
    (``rank(...)[0]``).  ``seats``: admit at most so many (default: up to the running limit).
    """
    line.start(view.now_ns)
    loose = _in_order(view, rank) if view.loose else ()
    decoding = len(view.decoding) if decode else 0
    budget = view.token_budget - decoding
    slices, need, left = _slices(view, loose, budget)
    if decode:
        need += view.growth()
    if need > view.free_pages:
        return _relieve(view, rank, mode, need, slices, decode)
    head = line.head()
    if head is None:
        if slices:
            return StepPlan(decode=decode, slices=slices)
        return DECODE_ON if decoding else StepPlan()
    if slices and left <= 0 and not yields and head.state is WAITING and head.ready:
        return StepPlan(decode=decode, slices=slices, blocked=Obstacle(head.id, "budget", head.pending))
    if seats is None:
        seats = view.running_limit - view.running
    filler = _Filler(view, line, rank, mode, yields, seats, budget, need)
    if slices:
        slices = filler.share(slices, loose, head) if yields else filler.spend(slices)
    filler.fill()
    if filler.preempt:
        sent = {item.request for item in filler.preempt}
        slices = [part for part in slices if part[0] not in sent]
    if slices or filler.changes():
        return StepPlan(
            decode=decode,
            admit=filler.admit,
            slices=slices,
            preempt=filler.preempt,
            resume=filler.resume,
            blocked=filler.blocked,
        )
    return StepPlan(
        decode=decode,
        repeat=FOREVER if decoding else 0,
        wake_ns=line.next_change_ns(),
        blocked=filler.blocked,
    )


def _slices(view: SchedulerView, loose: Sequence[RequestView], budget: int) -> tuple[list[Part], int, int]:
    """Go on with loose requests in order as far as ``budget`` reaches; the pages they need for it; the budget left."""
    slices: list[Part] = []
    pages = 0
    for request in loose:
        tokens = min(request.pending, budget)
        if tokens <= 0:
            break
        slices.append((request.id, tokens))
        budget -= tokens
        pages += view.slice_pages(request, tokens)
    return slices, pages, budget


def _in_order(view: SchedulerView, rank: Rank) -> Sequence[RequestView]:
    """Loose requests that can compute now, best first."""
    ready = [request for request in view.loose.values() if request.state is not SWAPPING_IN]
    if len(ready) > 1:
        ready.sort(key=lambda request: rank(request, view.now_ns))
    return ready


class _Filler:
    """Admits from the line into what a step has left.  One use."""

    __slots__ = (
        "admit", "blocked", "budget", "gained", "line", "mode", "preempt", "rank", "resume", "seats", "spent", "view",
        "yields",
    )  # fmt: skip

    def __init__(
        self,
        view: SchedulerView,
        line: OrderedLine,
        rank: Rank,
        mode: PreemptMode,
        yields: bool,
        seats: int,
        budget: int,
        spent: int,
    ) -> None:
        self.view = view
        self.line = line
        self.rank = rank
        self.mode = mode
        self.yields = yields
        self.seats = seats
        self.budget = budget
        self.spent = spent
        self.gained = 0
        self.admit: list[Part] = []
        self.resume: list[RequestId] = []
        self.preempt: list[Preemption] = []
        self.blocked: Obstacle | None = None

    def changes(self) -> bool:
        return bool(self.admit or self.resume or self.preempt)

    def spend(self, slices: list[Part]) -> list[Part]:
        """Running prefills take their tokens from the budget first."""
        self.budget -= sum([tokens for _, tokens in slices])
        return slices

    def share(self, slices: list[Part], loose: Sequence[RequestView], head: RequestView) -> list[Part]:
        """As ``spend``, but waiting requests of a better class come before running prefills of a worse one."""
        now_ns = self.view.now_ns
        best = self.rank(head, now_ns)[0]
        worse = [request for request in loose if self.rank(request, now_ns)[0] > best]
        if not worse:
            return self.spend(slices)
        others = dict(slices)
        for request in worse:
            others.pop(request.id, None)
        kept = self.spend(list(others.items()))
        self.fill(self.rank(worse[0], now_ns)[0])
        sent = {item.request for item in self.preempt}
        more, _, _ = _slices(self.view, [request for request in worse if request.id not in sent], self.budget)
        return kept + self.spend(more)

    def fill(self, below: int | None = None) -> None:
        """Admit until somebody does not fit, or is not of a class better than ``below``."""
        view, line = self.view, self.line
        while (head := line.head()) is not None:
            if below is not None and self.rank(head, view.now_ns)[0] >= below:
                return
            if not head.ready:
                self.blocked = Obstacle(head.id, "in_flight")
                return
            swapped = head.state is SWAPPED
            if self.budget <= 0 and not swapped:
                self.blocked = Obstacle(head.id, "budget", head.pending)
                return
            if self._obstacle(head) and not (self.yields and self._make_way(head)):
                return
            line.take()
            self.seats -= 1
            self.spent += view.pages_needed(head)
            if swapped:
                self.resume.append(head.id)
            else:
                tokens = min(head.pending, self.budget)
                self.admit.append((head.id, tokens))
                self.budget -= tokens

    def _obstacle(self, head: RequestView) -> bool:
        """Whether seats or pages are short for ``head``; says so in ``blocked``."""
        view = self.view
        if self.seats <= 0:
            full = view.running >= view.running_limit
            self.blocked = Obstacle(head.id, "seats" if full else "policy", 1 - self.seats)
            return True
        alone = not (view.running or self.admit or self.resume)
        headroom = 0 if alone else view.total_pages // WATERMARK + 1
        missing = view.pages_missing(head, self.spent + headroom - self.gained)
        if missing:
            self.blocked = Obstacle(head.id, "pages", missing)
            return True
        self.blocked = None
        return False

    def _make_way(self, head: RequestView) -> bool:
        """Preempt strictly lower classes for ``head``.  True if it fits at once; if it never would, nobody is sent."""
        view, now_ns = self.view, self.view.now_ns
        least = self.rank(head, now_ns)[0]
        growing = {request.id for request in view.growing()}
        sent = {item.request for item in self.preempt}
        running = [*view.decoding.values(), *view.loose.values()]
        lower = [
            request
            for request in running
            if self.rank(request, now_ns)[0] > least and _may_go(request) and request.id not in sent
        ]
        lower.sort(key=lambda request: self.rank(request, now_ns), reverse=True)
        host_pages = view.free_host_pages
        coming = view.returning_pages
        chosen: list[Preemption] = []
        seats, gained, spent = self.seats, self.gained, self.spent
        headroom = view.total_pages // WATERMARK + 1
        for victim in lower:
            if seats > 0 and not view.pages_missing(head, spent + headroom - gained - coming):
                break
            if victim.id in growing:
                spent -= 1
            mode = preempt_mode(view, victim, self.mode, host_pages)
            pages = view.exclusive_pages(victim)
            if mode == "swap":
                host_pages -= -(-victim.computed // view.page_size)
            if mode == "swap" or not victim.ready:
                coming += pages
            else:
                gained += pages
            chosen.append(Preemption(victim.id, mode, "gives way", head.id))
            seats += 1
        if seats <= 0 or view.pages_missing(head, spent + headroom - gained - coming):
            return False
        self.preempt += chosen
        self.seats, self.gained, self.spent = seats, gained, spent
        return not self._obstacle(head)


def _may_go(request: RequestView) -> bool:
    return not request.protected and request.state is not SWAPPING_IN


def _relieve(
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
    free, coming = view.free_pages, view.returning_pages
    host_pages = view.free_host_pages
    preempt: list[Preemption] = []
    for victim in running[:-1]:
        if need <= free + coming:
            break
        if not _may_go(victim):
            continue
        chosen = preempt_mode(view, victim, mode, host_pages)
        pages = view.exclusive_pages(victim)
        if chosen == "swap":
            host_pages -= -(-victim.computed // view.page_size)
        if chosen == "swap" or not victim.ready:
            coming += pages
        else:
            free += pages
        need -= wants.pop(victim.id, 0)
        tokens.pop(victim.id, None)
        preempt.append(Preemption(victim.id, chosen, "pages ran out", running[-1].id))
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
    return StepPlan(decode=decode, preempt=preempt, hold=hold, slices=kept)
