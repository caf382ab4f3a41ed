"""What happens to requests when steps fail: nothing of those steps exists, and KV pages are a rebuildable cache."""

from __future__ import annotations

from stepwell.core.errors import InvariantError
from stepwell.core.events import StepFailed
from stepwell.core.request import Request
from stepwell.core.state import State
from stepwell.core.types import SWAPPED, WAITING


def recover(state: State, event: StepFailed) -> None:
    """End the blamed requests and send every other one on the device back to be recomputed, cached prefixes included.

    Output tokens of the steps in flight never existed; those before stay known.  A request that went through more than
    ``max_failures`` failed steps ends with reason ``error``.
    """
    steps = [step.id for step in state.inflight]
    if event.step != (steps[0] if steps else 0) or not (steps or event.device_lost):
        raise InvariantError(f"step {event.step} failed, but in flight are {steps}")
    tokens = {request.id: state.visible_tokens(request) for request in state.requests.values()}
    state.inflight.clear()
    state.joining.clear()
    if steps:
        state.progress.done = steps[-1]
        state.allocator.step_done(steps[-1])
    blamed = dict.fromkeys(event.blamed)
    for request in list(state.requests.values()):
        if request.id in blamed:
            state.finish(request, "error", tokens[request.id], event.reason)
        elif request.state is WAITING:
            request.pending = request.prompt_tokens + tokens[request.id]
        elif request.state is not SWAPPED or event.device_lost:
            _start_over(state, request, tokens[request.id], event.reason or "step failed")
    state.group.forget_changes()
    state.allocator.forget()
    if event.device_lost:
        state.allocator.host_lost()


def _start_over(state: State, request: Request, tokens: int, reason: str) -> None:
    request.failures += 1
    limit = state.limits.max_failures
    if limit and request.failures > limit:
        state.finish(request, "error", tokens, reason)
        return
    lost = request.computed
    state.take_out(request)
    request.pending = request.prompt_tokens + tokens - request.base
    state.requeue(request, "recompute", reason, 0, lost)
