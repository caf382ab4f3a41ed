"""The rules that every plan must keep, checked before anything of it is applied.

A plan that asks for more than there is room for is no error (the first item that does not fit ends it); a plan that
breaks one of these rules is a bug in the policy.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.core import kinds
from stepwell.core.plan import BrokenRuleError as BrokenRuleError
from stepwell.core.plan import Obstacle, Part, StepPlan
from stepwell.core.request import Request
from stepwell.core.state import State
from stepwell.core.types import BLOCK_REASONS, PREEMPT_MODES, SWAPPING_IN, RequestId


def check_plan(plan: StepPlan, state: State) -> bool:
    """Raise ``BrokenRuleError`` unless ``plan`` keeps every rule.  True if it is nothing but the decode group."""
    if type(plan) is not StepPlan:
        raise BrokenRuleError("plan types", f"a StepPlan of integers is asked for, not {plan!r}")
    decode, repeat, wake, admit, reserve, slices, preempt, resume, hold, reject, blocked = kinds.fields(plan)
    if type(wake) is not int or type(repeat) is not int:
        raise BrokenRuleError("plan types", f"a StepPlan of integers is asked for, not {plan!r}")
    if blocked is not None:
        _check_blocked(blocked, state)
    if wake and wake <= state.now_ns:
        raise BrokenRuleError("wake in the future", f"asked for {wake} ns at {state.now_ns} ns")
    leaves = bool(preempt or hold or reject)
    if not (admit or slices or leaves or resume):
        _check_quiet(decode, wake, repeat, state)
        return True
    if repeat:
        raise BrokenRuleError("only decoding repeats", f"repeat is {repeat}, but the plan changes something")
    seen: dict[RequestId, str] = {}
    tokens = 0
    if leaves:
        _check_leaving(plan, state, seen)
    if decode:
        members = state.group.members
        tokens = len(members)
        if leaves:
            tokens -= sum([1 for id in seen if id in members])
    for id in resume:
        _find(state.swapped, id, seen, "resume")
    if admit:
        if reserve not in ("present", "slice"):
            raise BrokenRuleError("plan types", f"reserve must be present or slice, not {reserve!r}")
        tokens += _parts(admit, state.waiting, seen, "admit")
    if slices:
        tokens += _parts(slices, state.loose, seen, "slice")
    view = state.view
    if tokens > view.token_budget:
        raise BrokenRuleError("token budget", f"{tokens} tokens planned, the budget is {view.token_budget}")
    if admit or resume:
        seats = view.running + len(admit) + len(resume)
        if leaves:
            seats -= len(preempt)
        if seats > view.running_limit:
            raise BrokenRuleError("running limit", f"{seats} would run, the limit is {view.running_limit}")
    return False


def _check_blocked(obstacle: Obstacle, state: State) -> None:
    if obstacle.reason not in BLOCK_REASONS or type(obstacle.short) is not int:
        raise BrokenRuleError("plan types", f"blocked must give one of {BLOCK_REASONS} and a number, not {obstacle!r}")
    if obstacle.request not in state.requests:
        raise BrokenRuleError("known request", f"blocked names request {obstacle.request}, which does not live")


def _check_quiet(decode: bool, wake_ns: int, repeat: int, state: State) -> None:
    if decode and state.group.members:
        return
    if repeat:
        raise BrokenRuleError("only decoding repeats", f"repeat is {repeat}, but nothing decodes")
    if not state.inflight and state.requests and not wake_ns:
        raise BrokenRuleError("idle without wake", f"{len(state.requests)} requests live, nothing planned, no wake_ns")


def _find(table: dict[RequestId, Request], id: RequestId, seen: dict[RequestId, str], what: str) -> Request:
    if id in seen:
        raise BrokenRuleError("one item a request", f"request {id} is in the plan as {seen[id]} and as {what}")
    seen[id] = what
    request = table.get(id)
    if request is None:
        raise BrokenRuleError("known request", f"{what} names request {id}, which is not there to {what}")
    return request


def _check_leaving(plan: StepPlan, state: State, seen: dict[RequestId, str]) -> None:
    for item in plan.preempt:
        table = state.group.members if item.request in state.group.members else state.loose
        request = _find(table, item.request, seen, "preempt")
        if item.mode not in PREEMPT_MODES or type(item.reason) is not str or type(item.beneficiary) is not int:
            raise BrokenRuleError("plan types", f"a mode of {PREEMPT_MODES}, a reason, a request; not {item!r}")
        if request.protected:
            raise BrokenRuleError(
                "preemption limit", f"request {item.request} was preempted {request.preemptions} times already"
            )
        if request.state is SWAPPING_IN:
            raise BrokenRuleError("known request", f"request {item.request} is still being swapped in")
    for id in plan.hold:
        _find(state.group.members, id, seen, "hold")
    for id, why in plan.reject:
        _find(state.waiting, id, seen, "reject")
        if type(why) is not str:
            raise BrokenRuleError("plan types", f"a reject gives its reason as text, not {why!r}")


def _parts(parts: Sequence[Part], table: dict[RequestId, Request], seen: dict[RequestId, str], what: str) -> int:
    """Check requests with their tokens; returns the tokens."""
    total = 0
    for id, tokens in parts:
        request = table.get(id)
        if request is None or id in seen:
            request = _find(table, id, seen, what)
        seen[id] = what
        if type(tokens) is not int or not 0 < tokens <= request.pending:
            raise BrokenRuleError(
                "slice size", f"{tokens} tokens for request {id}, which has {request.pending} pending"
            )
        total += tokens
    return total
