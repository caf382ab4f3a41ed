"""How a request enters: refused for a reason that names the limit, or put in the waiting line."""

from __future__ import annotations

from stepwell.core.events import Submitted
from stepwell.core.instructions import Rejected
from stepwell.core.request import Request
from stepwell.core.state import State


def take_in(state: State, event: Submitted, longest: int) -> Request | None:
    """The new request, waiting for the device or for its parent; None if it was refused (said in ``state.out``).

    ``longest`` is how many prompt and output tokens one request may have; ``max_tokens`` is cut to what it leaves, and
    a prompt that leaves nothing is refused.
    """
    id, prompt = event.request, event.prompt_tokens
    backlog = state.backlog
    klass = backlog.klass(event.klass)
    if klass is None:
        state.out.append(Rejected(id, "unknown_class"))
        return None
    if prompt >= longest:
        state.out.append(Rejected(id, "prompt_too_long", longest - 1))
        return None
    refusal = backlog.refusal(id, event.klass, prompt)
    if refusal is not None:
        state.out.append(refusal)
        return None
    request = Request(
        id,
        prompt,
        min(event.max_tokens, longest - prompt),
        event.klass,
        klass.rank,
        event.tenant,
        state.now_ns,
        event.expires_ns,
        event.keys,
        state.progress,
    )
    request.priority, request.program, request.parent = event.priority, event.program, event.parent
    backlog.endow(request)
    state.requests[id] = request
    backlog.add(request)
    return request
