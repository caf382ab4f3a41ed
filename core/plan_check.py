"""The rules that every plan must keep, checked before anything of it is applied.

A plan that asks for more than there is room for is no error (the first item that does not fit ends it); a plan that
breaks one of these rules is a bug in the policy.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.core.plan import BrokenRuleError as BrokenRuleError
from stepwell.core.plan import Obstacle, Part, StepPlan
from stepwell.core.request import Request
from stepwell.core.state import State
from stepwell.core.types import BLOCK_REASONS, PREEMPT_MODES, SWAPPING_IN, RequestId


def check_plan(plan: StepPlan, state: State) -> bool:
    """Raise ``BrokenRuleError`` unless ``plan`` keeps every rule.  True if it is nothing but the decode group."""
    if type(plan) is not StepPlan or type(plan.wake_ns) is not int or type(plan.repeat) is not int:
        raise BrokenRuleError("plan types", f"a StepPlan of integers is asked for, not {plan!r}")
    if plan.blocked is not None:
        _check_blocked(plan.blocked, state)
    if plan.wake_ns and plan.wake_ns <= state.now_ns:
        raise BrokenRuleError("wake in the future", f"asked for {plan.wake_ns} ns at {state.now_ns} ns")
    if not (plan.admit or plan.slices or plan.preempt or plan.resume or plan.hold or plan.reject):
        _check_quiet(plan, state)
        return True
    if plan.repeat:
        raise BrokenRuleError("only decoding repeats", f"repeat is {plan.repeat}, but the plan changes something")
    seen: dict[RequestId, str] = {}
    tokens = 0
    if plan.preempt or plan.hold or plan.reject:
        _check_leaving(plan, state, seen)
        if plan.decode:
            tokens -= sum(1 for id in seen if id in state.group.members)
    for id in plan.resume:
        _find(state.swapped, id, seen, "resume")
    if plan.admit:
        if plan.reserve not in ("present", "slice"):
            raise BrokenRuleError("plan types", f"reserve must be present or slice, not {plan.reserve!r}")
        tokens += _parts(plan.admit, state.waiting, seen, "admit")
    if plan.slices:
        tokens += _parts(plan.slices, state.loose, seen, "slice")
    if plan.decode:
        tokens += len(state.group.members)
    limits = state.limits
    if tokens > limits.token_budget:
        raise BrokenRuleError("token budget", f"{tokens} tokens planned, the budget is {limits.token_budget}")
    if plan.admit or plan.resume:
        seats = state.view.running + len(plan.admit) + len(plan.resume) - len(plan.preempt)
        if seats > limits.running_limit:
            raise BrokenRuleError("running limit", f"{seats} would run, the limit is {limits.running_limit}")
    return False


def _check_blocked(obstacle: Obstacle, state: State) -> None:
    if obstacle.reason not in BLOCK_REASONS or type(obstacle.short) is not int:
        raise BrokenRuleError("plan types", f"blocked must give one of {BLOCK_REASONS} and a number, not {obstacle!r}")
    if obstacle.request not in state.requests:
        raise BrokenRuleError("known request", f"blocked names request {obstacle.request}, which does not live")


def _check_quiet(plan: StepPlan, state: State) -> None:
    decodes = plan.decode and state.group.members
    if decodes:
        return
    if plan.repeat:
        raise BrokenRuleError("only decoding repeats", f"repeat is {plan.repeat}, but nothing decodes")
    if not state.inflight and state.requests and not plan.wake_ns:
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
