"""What vLLM V1's own scheduler decides, one step at a time: the baseline that most servers run.

Source: ``vllm.v1.core.sched.scheduler.Scheduler`` of vLLM 0.32 (Kwon et al., SOSP'23, section 4.5, is where it began).
Running requests compute first, in the order in which they were admitted, as far as the token budget goes.  Who finds no
page sends away the last admitted (``priority``: the worst by priority and arrival), perhaps itself, to be recomputed;
then nobody is admitted.  Otherwise the line is admitted in order while budget and seats last and the whole present
length would fit in the free pages, of which only those for the step's tokens are taken.  No page is kept in reserve.
Compared with the real one, step by step, by ``benchmarks/parity_vllm.py``.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from stepwell.core.plan import Part, Preemption, StepPlan
from stepwell.core.protocols import PolicyEvent, Promises, RequestView, SchedulerView
from stepwell.core.types import FOREVER, SWAPPING_IN, RequestId
from stepwell.policies.line import Key, OrderedLine, Rank, by_arrival
from stepwell.policies.toolkit import pack
from stepwell.policies.victims import PreemptChoice, VictimRule, may_go


class Vllm:
    """First come, first served, or by priority; chunked prefill; recomputes the last when pages run out."""

    name = "vllm"
    promises = Promises(work_conserving=True, bounded_wait=True)

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """vLLM's ``--scheduling-policy`` and ``--long-prefill-token-threshold``."""

        order: Literal["fcfs", "priority"] = "fcfs"
        """``priority``: the lowest number first; even so, running requests give way only when pages run out."""
        long_prefill_token_threshold: Annotated[int, msgspec.Meta(ge=0)] = 0
        """The most tokens of one prompt in a step while other requests live; 0: as many as the budget has."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.rank: Rank = by_arrival
        if options.order == "priority":
            self.rank = by_priority
            self.promises = Promises(work_conserving=True, respects_rank=True)
        self.line = OrderedLine(self.rank)
        self._turns: dict[RequestId, int] = {}
        self._next = 0
        self._found = self._twice = 0

    def observe(self, event: PolicyEvent) -> None:
        self.line.observe(event)
        if event.kind == "admitted" or event.kind == "resumed":
            self._turns[event.request.id] = self._next
            self._next += 1
        elif event.kind in ("preempted", "swapped", "finished"):
            self._turns.pop(event.request.id, None)

    def plan(self, view: SchedulerView) -> StepPlan:
        self._found = self._twice = 0
        return pack(
            view,
            self.line,
            rank=self.turn,
            chunk=self._chunk(view),
            admission=self.missing,
            reserve="slice",
            relief=self.make_do,
        )

    def turn(self, request: RequestView, now_ns: int) -> Key:
        """The order of admission."""
        return (0, self._turns[request.id])

    def missing(self, view: SchedulerView, request: RequestView, bound: int, alone: bool) -> int:
        """Pages missing for the present length, and no more.

        Idle pages of a prefix that somebody of the same plan finds too are not needed twice.  How many those are is not
        known here: as many as can be, since the core ends the plan where somebody does not fit.  (But not before the
        slices of running requests, which would be lost.)
        """
        found = view.cached_tokens(request) // view.page_size
        twice = 0 if view.loose else self._twice + min(found, self._found)
        short = max(0, view.pages_missing(request, bound) - twice)
        if not short:
            self._twice, self._found = twice, max(found, self._found)
        return short

    def _chunk(self, view: SchedulerView) -> int:
        most = self.options.long_prefill_token_threshold
        alone = view.running + len(view.waiting) + len(view.swapped) == 1
        return FOREVER if alone or not most else most

    def make_do(
        self,
        view: SchedulerView,
        rank: Rank,
        mode: PreemptChoice,
        need: int,
        slices: list[Part],
        decode: bool,
        rule: VictimRule | None,
    ) -> StepPlan:
        """Pages are short: one after another, running requests take theirs or send somebody away.

        Whoever sends itself away ends the step: those after it sit it out, although its pages are free now.
        """
        step = _Shortage(view, self.rank, self._chunk(view))
        running = [*view.decoding.values(), *view.loose.values()]
        for request in sorted(running, key=lambda each: rank(each, view.now_ns)):
            if request.state is not SWAPPING_IN and not step.serve(request):
                break
        hold = [id for id in view.decoding if id not in step.tokens and id not in step.gone]
        parts = [(id, tokens) for id, tokens in step.tokens.items() if id in view.loose]
        return StepPlan(preempt=list(step.gone.values()), hold=hold, slices=parts)

    def dump(self) -> object:
        return sorted(self._turns, key=lambda id: self._turns[id])

    def load(self, data: Any) -> None:
        self._turns = {id: turn for turn, id in enumerate(data)}
        self._next = len(data)


def by_priority(request: RequestView, now_ns: int) -> Key:
    """As the client asked for it; then arrival."""
    return (request.priority, request.id)


class _Shortage:
    """A step in which pages run out: who computes how many ``tokens``, and who is ``gone``.  One use."""

    def __init__(self, view: SchedulerView, rank: Rank, chunk: int) -> None:
        self.view = view
        self.chunk = chunk
        self.budget = view.token_budget
        self.free = view.free_pages
        self.coming = view.returning_pages
        """Pages that steps in flight will give back: with two in flight nobody is sent away for want of those."""
        self.growing = {request.id for request in view.growing()}
        able = [each for each in (*view.decoding.values(), *view.loose.values()) if may_go(each)]
        self.victims = sorted(able, key=lambda each: rank(each, view.now_ns))
        self.tokens: dict[RequestId, int] = {}
        self.pages: dict[RequestId, int] = {}
        self.gone: dict[RequestId, Preemption] = {}

    def serve(self, request: RequestView) -> bool:
        """Give ``request`` its tokens, whoever must go for it; False if this ends the step."""
        if request.id in self.gone:
            return True
        tokens = min(request.pending, self.chunk, self.budget)
        if tokens <= 0:
            return False
        decodes = request.id in self.view.decoding
        pages = int(request.id in self.growing) if decodes else self.view.slice_pages(request, tokens)
        while pages > self.free + self.coming:
            if not self.victims:
                return False
            victim = self.victims.pop()
            self.send(victim, request)
            if victim is request:
                return False
        if pages > self.free:
            self.coming -= pages - self.free
            self.free = 0
            return True
        self.free -= pages
        self.budget -= tokens
        self.tokens[request.id] = tokens
        self.pages[request.id] = pages
        return True

    def send(self, victim: RequestView, request: RequestView) -> None:
        """Away with ``victim``, even if it has had its tokens in this step."""
        freed = self.view.exclusive_pages(victim)
        if victim.ready:
            self.free += freed
        else:
            self.coming += freed
        self.free += self.pages.pop(victim.id, 0)
        self.budget += self.tokens.pop(victim.id, 0)
        beneficiary = 0 if victim is request else request.id
        self.gone[victim.id] = Preemption(victim.id, "recompute", "pages ran out", beneficiary)
