"""Pure parts that policies are made of, and ``pack``, which puts them together.

- order: a ``Line`` (who is next: ``OrderedLine``, ``Aging.line``, ``TenantLine``, ``ListedLine``) and a ``Rank`` (how
  running requests compare), from ``Guesses`` of lengths (``WorkLine``) or when they are ``due_ns``;
- admission: an ``Admission``, the pages that are missing to take somebody in; ``with_watermark`` unless said otherwise;
- chunking: ``prefill``, how many tokens of the budget prompts may have in this step; of these the prompts of a class
  have its ``budget_share`` at most while other classes have work (``policies.shares``), and one prompt ``chunk``;
- victims, and swap or recompute: a ``Relief`` of ``policies.victims``, by ``Rank``, within a class by a ``VictimRule``,
  and ``mode``.

``pack`` fills one step, decodes first (Sarathi-Serve, OSDI'24: running requests never stall for a prefill):

1. the decode group, every member one token; if pages run short, the worst-ranked running requests give way;
2. running prefills go on, in order, as far as the token budget allows;
3. only if nobody had to give way: the line is admitted strictly in order until the first that does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, cast

from stepwell.core.plan import Obstacle, Part, Preemption, StepPlan
from stepwell.core.protocols import RequestView, SchedulerView
from stepwell.core.request import Request
from stepwell.core.types import FOREVER, NS_PER_S, SWAPPED, SWAPPING_IN, WAITING, RequestId
from stepwell.core.view import View
from stepwell.policies.aging import Aging
from stepwell.policies.deadlines import due_ns
from stepwell.policies.line import Line, ListedLine, OrderedLine, Rank, by_arrival, first_in_line
from stepwell.policies.shares import Shares
from stepwell.policies.tenant_line import TenantLine
from stepwell.policies.victims import (
    Departures,
    PreemptChoice,
    Relief,
    VictimRule,
    may_go,
    preempt_mode,
    relieve,
    worst_first,
)
from stepwell.policies.work import Guesses, WorkLine, WorkOptions

__all__ = [
    "Admission",
    "Aging",
    "Guesses",
    "Line",
    "ListedLine",
    "OrderedLine",
    "Rank",
    "TenantLine",
    "WorkLine",
    "WorkOptions",
    "by_arrival",
    "due_ns",
    "first_in_line",
    "pack",
    "preempt_mode",
    "seconds",
    "with_watermark",
]

DECODE_ON = StepPlan(repeat=FOREVER)
"""The plan of a quiet step: the decode group, until something happens."""

WATERMARK = 100
"""One page in so many stays free when a request is admitted beside running ones, so that these can grow a while.

vLLM's first block manager kept the same share (``watermark=0.01``): without it a newcomer is soon preempted again.
"""


PASSED_OVER = 8
"""Requests whose class has had its share of the step, and that others are taken in past, at most."""

Admission = Callable[[SchedulerView, RequestView, int, bool], int]
"""``(view, request, bound, alone)``: pages missing to take in a request; 0: it may come.

``bound`` pages are spoken for by the same plan (a negative number: it frees some); ``alone`` if nobody else would run.
"""


Worst = Callable[[int], Iterator[tuple[int, RequestView]]]
"""``(now_ns)``: who runs, with their classes, the worst by rank first."""


def with_watermark(view: SchedulerView, request: RequestView, bound: int, alone: bool) -> int:
    """Pages missing for the present length, with a few kept free beside running requests."""
    own = cast(View, view)
    return own.pages_missing(request, bound if alone else bound + own.total_pages // WATERMARK + 1)


def seconds(value: float) -> int:
    """Integer nanoseconds of a time in seconds given in options."""
    return round(value * NS_PER_S)


def pack(
    view: SchedulerView,
    line: Line,
    *,
    rank: Rank = by_arrival,
    mode: PreemptChoice = "recompute",
    yields: bool = False,
    seats: int | None = None,
    decode: bool = True,
    prefill: int = FOREVER,
    chunk: int = FOREVER,
    admission: Admission = with_watermark,
    victims: VictimRule | None = None,
    reserve: Literal["present", "slice"] = "present",
    relief: Relief = relieve,
    worst: Worst | None = None,
) -> StepPlan:
    """Fill the next step; see the module.

    ``rank`` orders running requests (the worst gives way first; of equal class, whom ``victims`` says); ``mode`` is
    how, swap falling back to recompute when the host tier is full.  ``yields``: a running request also gives way to a
    waiting one of strictly better class (``rank(...)[0]``); ``worst`` says who comes into question, of a policy that
    knows, or else all who run are ranked.  ``seats``: admit at most so many (default: up to the running limit).
    ``reserve`` is the plan's.
    """
    own = cast(View, view)  # the scheduler's: compiled code then reads it directly
    line.start(own.now_ns)
    decoding = len(own.decoding) if decode else 0
    budget = own.token_budget - decoding
    if prefill < budget:
        budget = prefill
    loose = _in_order(own, rank) if own.loose else ()
    shares = Shares(own, chunk) if loose else None
    slices, need, left = _slices(own, loose, budget, shares) if shares else ([], 0, budget)
    if decode:
        need += own.growth()
    if need > own.free_pages:
        return relief(view, rank, mode, need, slices, decode, victims)
    first = line.head()
    if first is None:
        if slices:
            return StepPlan(decode=decode, slices=slices)
        return DECODE_ON if decoding else StepPlan()
    head = cast(Request, first)
    if slices and left <= 0 and not yields and head.state is WAITING and head.ready:
        return StepPlan(decode=decode, slices=slices, blocked=Obstacle(head.id, "budget", head.pending))
    shares = shares or Shares(own, chunk)
    filler = _Filler(own, line, rank, mode, yields, seats, budget, need, admission, victims, shares, reserve, worst)
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
            reserve=reserve,
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


def _slices(view: View, loose: Sequence[RequestView], budget: int, shares: Shares) -> tuple[list[Part], int, int]:
    """Go on with loose requests in order as far as ``budget`` and the shares of their classes reach; the pages that
    they need for it; the budget left."""
    slices: list[Part] = []
    pages = 0
    for request in loose:
        if budget <= 0:
            break
        tokens = min(request.pending, budget, shares.left(request))
        if tokens <= 0:
            continue
        shares.take(request, tokens)
        slices.append((request.id, tokens))
        budget -= tokens
        pages += view.slice_pages(request, tokens)
    return slices, pages, budget


def _in_order(view: View, rank: Rank) -> Sequence[RequestView]:
    """Loose requests that can compute now, best first."""
    ready = [request for request in view.loose.values() if request.state is not SWAPPING_IN]
    if len(ready) > 1:
        ready.sort(key=lambda request: rank(request, view.now_ns))
    return ready


class _Filler:
    """Admits from the line into what a step has left.  One use."""

    __slots__ = (
        "admission", "admit", "blocked", "budget", "gained", "line", "mode", "more", "passed", "preempt", "rank",
        "reserve", "resume", "running", "seats", "shares", "spent", "victims", "view", "worst", "worst_first", "yields",
    )  # fmt: skip

    def __init__(
        self,
        view: View,
        line: Line,
        rank: Rank,
        mode: PreemptChoice,
        yields: bool,
        seats: int | None,
        budget: int,
        spent: int,
        admission: Admission,
        victims: VictimRule | None,
        shares: Shares,
        reserve: Literal["present", "slice"],
        worst: Worst | None,
    ) -> None:
        self.view = view
        self.line = line
        self.rank = rank
        self.mode = mode
        self.yields = yields
        self.running = view.running
        self.seats = view.running_limit - self.running if seats is None else seats
        self.budget = budget
        self.spent = spent
        self.admission = admission
        self.victims = victims
        self.shares = shares
        self.reserve = reserve
        self.passed = 0
        self.gained = 0
        self.worst_first = worst
        self.worst: list[tuple[int, RequestView]] = []
        self.more: Iterator[tuple[int, RequestView]] | None = None
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
            self.shares.take(request, -others.pop(request.id, 0))
        kept = self.spend(list(others.items()))
        self.fill(self.rank(worse[0], now_ns)[0])
        sent = {item.request for item in self.preempt}
        more, _, _ = _slices(
            self.view, [request for request in worse if request.id not in sent], self.budget, self.shares
        )
        return kept + self.spend(more)

    def fill(self, below: int | None = None) -> None:
        """Admit until somebody does not fit, or is not of a class better than ``below``."""
        view, line = self.view, self.line
        while (first := line.head()) is not None:
            head = cast(Request, first)
            if below is not None and self.rank(head, view.now_ns)[0] >= below:
                return
            if not head.ready:
                self.blocked = Obstacle(head.id, "in_flight")
                return
            swapped = head.state is SWAPPED
            if self.budget <= 0 and not swapped:
                self.blocked = Obstacle(head.id, "budget", head.pending)
                return
            most = self.shares.left(head)
            if most <= 0 and not swapped:
                self.blocked = Obstacle(head.id, "budget", head.pending)
                self.passed += 1
                if self.passed > PASSED_OVER:
                    return
                line.take()  # not placed, so it is put back when the next plan begins
                continue
            if self._obstacle(head) and not (self.yields and self._make_way(head)):
                return
            line.take()
            self.seats -= 1
            self.spent += view.pages_needed(head)
            if swapped:
                self.resume.append(head.id)
            else:
                cached = view.cached_tokens(head)
                tokens = head.pending - cached
                if most < tokens:
                    tokens = most
                if self.budget < tokens:
                    tokens = self.budget
                self.shares.take(head, tokens)
                self.admit.append((head.id, tokens))
                self.budget -= tokens
                if self.reserve == "slice" and not head.protected:
                    size = view.page_size
                    self.spent -= -(-head.known // size) - -(-(cached + tokens) // size)

    def _obstacle(self, head: Request) -> bool:
        """Whether seats or pages are short for ``head``; says so in ``blocked``."""
        view = self.view
        if self.seats <= 0:
            full = self.running >= view.running_limit
            self.blocked = Obstacle(head.id, "seats" if full else "policy", 1 - self.seats)
            return True
        alone = not (self.running or self.admit or self.resume)
        missing = self.admission(view, head, self.spent - self.gained, alone)
        if missing:
            self.blocked = Obstacle(head.id, "pages", missing)
            return True
        self.blocked = None
        return False

    def _make_way(self, head: Request) -> bool:
        """Preempt strictly lower classes for ``head``.  True if it fits at once; if it never would, nobody is sent."""
        view = self.view
        least = self.rank(head, view.now_ns)[0]
        growing = {request.id for request in view.growing()}
        sent = {item.request for item in self.preempt}
        leaving = Departures(view, self.mode)
        seats, spent = self.seats, self.spent - self.gained
        for key, victim in self._candidates():
            if key <= least:
                break
            stays = victim.id in view.decoding or victim.id in view.loose  # else its last token is in flight
            if not stays or victim.id in sent or not may_go(victim):
                continue
            if seats > 0 and not self.admission(view, head, spent - leaving.freed - leaving.coming, False):
                break
            if victim.id in growing:
                spent -= 1
            leaving.send(victim, "gives way", head.id)
            seats += 1
        if seats <= 0 or self.admission(view, head, spent - leaving.freed - leaving.coming, False):
            return False
        self.preempt += leaving.items
        self.seats, self.spent = seats, spent + self.gained
        self.gained += leaving.freed
        return not self._obstacle(head)

    def _candidates(self) -> Iterator[tuple[int, RequestView]]:
        """Who runs, with their classes, the worst first; looked for once a plan, as far as anybody asks."""
        yield from self.worst
        if self.more is None:
            worst_first = self._ranked if self.worst_first is None else self.worst_first
            self.more = worst_first(self.view.now_ns)
        for each in self.more:
            self.worst.append(each)
            yield each

    def _ranked(self, now_ns: int) -> Iterator[tuple[int, RequestView]]:
        view = self.view
        running = (*view.decoding.values(), *view.loose.values())
        ranked = [(self.rank(each, now_ns), each) for each in running if may_go(each)]
        return iter([(key[0], each) for key, each in worst_first(view, ranked, self.victims)])
