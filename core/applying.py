"""Turns a checked plan into a launch: reserves pages, moves requests, and stops at the first item that does not fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepwell.core import kinds
from stepwell.core.draft import Draft, decoding
from stepwell.core.forking import shared_tokens
from stepwell.core.instructions import Preempted, Resumed
from stepwell.core.plan import Part, Preemption, StepPlan
from stepwell.core.protocols import NotNow, Reservation
from stepwell.core.request import Request
from stepwell.core.state import State, StepRecord
from stepwell.core.types import PREFILLING, SWAPPING_IN, SWAPPING_OUT, PreemptMode, RequestId


class PlanApplier:
    """Applies one plan at a time to ``state``.  ``clean`` says that all of the last plan fitted."""

    __slots__ = ("_draft", "_step", "clean", "state")

    def __init__(self, state: State) -> None:
        self.state = state
        self._draft = Draft()
        self._step = StepRecord(0, 0, [])

    def apply(self, plan: StepPlan) -> StepRecord | None:
        """Do what ``plan`` says.  Returns the step to launch, its instruction in ``state.out``, or None if no work came
        of it.  The decode group runs even if an item was refused: it keeps its place."""
        state = self.state
        self.clean = True
        draft = self._draft = Draft()
        step = self._step = StepRecord(state.next_step, 0, []).open()
        for id, why in plan.reject:
            request = state.requests[id]
            state.finish(request, "rejected", state.visible_tokens(request), why)
        fits = not plan.preempt or self._preempt(plan)
        for id in plan.hold:
            self._hold(state.requests[id])
        if plan.decode and state.group.members:
            fits = self._decode() and fits
        if fits and (not plan.resume or self._resume(plan)):
            admit = plan.admit
            if not admit or self._admit(admit, plan.reserve == "slice"):
                slices = plan.slices
                if slices:
                    self._continue(slices)
        if not draft.works():
            return None
        decodes = draft.decode
        if decodes or step.sampled:
            state.silent_steps = 0
        else:
            state.silent_steps += 1
        joined, left = state.group.changes(decodes)
        if decodes:
            self._tick()
        state.out.append(draft.launch(step.id, joined, left))
        return step

    def decode(self, plan: StepPlan) -> StepRecord | None:
        """``apply`` for a plan of nothing but the decode group: the commonest one."""
        state, group = self.state, self.state.group
        if not (plan.decode and group.members):
            return None
        growth: list[int] = []
        growing = group.growing()
        if growing:
            if len(growing) > state.allocator.free_pages:
                return self.apply(plan)
            growth = append_pages(state, group.grow(group.launched))
        self.clean = True
        step = self._step = StepRecord(state.next_step, 0, [])
        joined, left = group.changes(True)
        self._tick()
        state.silent_steps = 0
        state.out.append(decoding(step.id, growth, joined, left))
        return step

    def _tick(self) -> None:
        """The decode group is part of the launch."""
        group, step = self.state.group, self._step
        last = group.tick(step.id)
        for request in last:
            self.state.draining[request.id] = request
        step.last += last
        step.tick = group.launched

    def _refuse(self, request: Request) -> bool:
        self.clean = False
        self.state.tell("refused", request)
        return False

    # ------------------------------------------------------------------------------------------- leaving the device

    def _preempt(self, plan: StepPlan) -> bool:
        for item in plan.preempt:
            request = self.state.requests[item.request]
            mode: PreemptMode = item.mode if request.computed else "recompute"
            if mode == "recompute":
                tokens = request.computed
                self.state.take_out(request)
                self.state.count_preemption(request)
                self.state.requeue(request, mode, item.reason, item.beneficiary, tokens)
            elif not self._swap_out(request, item):
                return self._refuse(request)
        return True

    def _swap_out(self, request: Request, item: Preemption) -> bool:
        state, step = self.state, self._step.id
        tokens = request.computed
        pages = state.allocator.exclusive_pages(request.id)
        copy = state.allocator.swap_out(request.id, tokens, step)
        if isinstance(copy, NotNow):
            return False
        state.take_out(request)
        request.last_step = step
        better = state.requests.get(item.beneficiary)
        if better is not None and better.rank < request.rank and better.id > request.excused:
            request.excused = better.id
        else:
            state.count_preemption(request)
        request.move(SWAPPING_OUT, state.now_ns, item.reason)
        state.swapped[request.id] = request
        self._step.copies.append(request)
        self._step.pages += len(copy.device)
        self._draft.swap_out = [*self._draft.swap_out, (request.id, copy.device, copy.host)]
        state.out.append(Preempted(request.id, "swap", item.reason, item.beneficiary, tokens, pages))
        state.tell("swapped", request)
        return True

    def _hold(self, request: Request) -> None:
        """It may join again while steps in flight still sample for it, and joining forgets when it was in the group."""
        for step in self.state.inflight:
            if step.samples(request):
                step.sampled = {**step.sampled, request.id: request}
        self.state.group.leave(request)
        self.state.loose[request.id] = request

    # ------------------------------------------------------------------------------------------- the decode group

    def _decode(self) -> bool:
        """Run the group; members for whom no page is left are held, the last to join first."""
        state, group = self.state, self.state.group
        fits = True
        growing = group.growing()
        if growing:
            short = len(growing) - state.allocator.free_pages
            if short > 0:
                held = list(growing.values())[-short:]
                for request in held:
                    self._hold(request)
                fits = self._refuse(held[0])
            if growing:
                self._draft.growth = append_pages(state, group.grow(group.launched))
        self._draft.decode = bool(group.members)
        return fits

    # ------------------------------------------------------------------------------------------- taking in

    def _resume(self, plan: StepPlan) -> bool:
        state, step = self.state, self._step.id
        for id in plan.resume:
            request = state.requests[id]
            if not request.ready:
                return self._refuse(request)
            copy = state.allocator.swap_in(id, request.reserve_tokens, request.limit, step)
            if isinstance(copy, NotNow):
                return self._refuse(request)
            del state.swapped[id]
            request.capacity = copy.capacity
            request.last_step = step
            request.move(SWAPPING_IN, state.now_ns, "resumed")
            state.loose[id] = request
            self._step.copies.append(request)
            self._step.pages += len(copy.device)
            self._draft.swap_in = [*self._draft.swap_in, (id, copy.device, copy.host)]
            self._draft.tables.append((id, copy.table))
            state.out.append(Resumed(id))
            state.tell("resumed", request)
        return True

    def _admit(self, admit: Sequence[Part], by_slice: bool) -> bool:
        state, draft = self.state, self._draft
        for id, tokens in admit:
            request = state.waiting[id]
            boxed = request.id
            if not request.ready:
                return self._refuse(request)
            reservation = new_table(state, request, tokens if by_slice else 0)
            if isinstance(reservation, NotNow):
                return self._refuse(request)
            del state.waiting[boxed]
            request.capacity = reservation.capacity
            request.base = reservation.cached
            request.pending -= reservation.cached
            if not request.started:
                request.started = True
                state.backlog.remove(request)
            request.move(PREFILLING, state.now_ns, "admitted")
            state.loose[boxed] = request
            draft.tables.append((boxed, reservation.pages))
            if reservation.copies:
                draft.copies = draft.copies + reservation.copies
            state.out.append(kinds.ADMITTED(boxed, reservation.cached, reservation.shared))
            state.tell("admitted", request)
            self._run_slice(request, tokens if tokens < request.pending else request.pending)
        return True

    def _continue(self, slices: Sequence[Part]) -> None:
        state, draft = self.state, self._draft
        for id, tokens in slices:
            request = state.loose[id]
            if request.state is SWAPPING_IN:
                self._refuse(request)
                return
            end = request.base + tokens
            if end > request.capacity:
                reservation = state.allocator.reserve(id, end, request.limit)
                if isinstance(reservation, NotNow):
                    self._refuse(request)
                    return
                request.capacity = reservation.capacity
                draft.growth = [*draft.growth, *_in_turn([id] * len(reservation.pages), reservation.pages)]
                draft.copies = draft.copies + reservation.copies
            self._run_slice(request, tokens)

    def _run_slice(self, request: Request, tokens: int) -> None:
        start = request.base
        request.base = start + tokens
        request.pending -= tokens
        request.last_step = self._step.id
        self._step.prefill += tokens
        if request.keys and start < request.prompt_tokens:
            self._step.computed.append((request, request.base))
        samples = request.pending == 0
        if samples:
            request.pending = 1
            self._step.sampled[request.id] = request
            if request.base == request.limit:
                del self.state.loose[request.id]
                self.state.draining[request.id] = request
                self._step.last.append(request)
            else:
                self.state.joining.append(request)
        self._draft.slices.append((request.id, start, tokens, samples))


def new_table(state: State, request: Request, first: int = 0) -> Reservation | NotNow:
    """Pages for a request that is taken in: it shares its parent's prompt, or finds what its keys find.

    ``first``: those of a first slice of so many tokens alone, if those of the present length are free.  A protected
    request gets its greatest length at once whatever the plan says: nobody may send it away again.
    """
    allocator, tokens, limit = state.allocator, request.reserve_tokens, request.limit
    shared = shared_tokens(request, state.requests) if request.parent else 0
    if shared:
        return allocator.fork(request.parent, request.id, shared, tokens, limit)
    keys = request.prefix_keys(allocator.key_tokens) if request.keys else request.keys
    if first and not request.protected:
        short = allocator.pages_missing(tokens, limit, 0, keys)
        if short:
            return NotNow(short)
        tokens = min(tokens, allocator.cached_tokens(keys) + first)
    return allocator.reserve(request.id, tokens, limit, keys)


def append_pages(state: State, ids: list[RequestId]) -> list[int]:
    """One page to the table of each request; the pool has them.  Returns request, page, request, page, …"""
    pages = state.allocator.grow(ids)
    assert not isinstance(pages, NotNow)
    return _in_turn(ids, pages)


def _in_turn(ids: list[Any], pages: list[Any]) -> list[Any]:
    """One of each in turn.  Of ``Any``, because compiled code would unbox every integer and box it again."""
    flat: list[Any] = []
    for index, page in enumerate(pages):
        flat.append(ids[index])
        flat.append(page)
    return flat
