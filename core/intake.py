"""How a request enters: refused for a reason that names the limit, or put in the waiting line."""

from __future__ import annotations

from stepwell.core import kinds
from stepwell.core.errors import InvariantError
from stepwell.core.events import Submitted
from stepwell.core.instructions import Rejected
from stepwell.core.request import Request
from stepwell.core.state import State
from stepwell.core.types import BoxedId, RequestId


def take_in(state: State, event: Submitted, last: RequestId, longest: int) -> Request | None:
    """The new request, waiting for the device or for its parent; None if it was refused (said in ``state.out``).

    ``last`` is the one that arrived before it.  ``longest`` is how many prompt and output tokens one request may have;
    ``max_tokens`` is cut to what it leaves, and a prompt that leaves nothing is refused.  Raises ``InvariantError`` if
    the shell reports what cannot be.
    """
    id: BoxedId
    prompt: int
    name: str
    keys: list[int]
    parent: RequestId
    id, prompt, max_tokens, name, tenant, expires_ns, keys, priority, program, parent = kinds.fields(event)
    least = len(keys) * state.allocator.key_tokens if keys else 1
    if (
        id <= last
        or prompt < least
        or prompt < 1
        or max_tokens < 1
        or (parent and not _alike(state, parent, id, prompt))
    ):
        raise InvariantError(f"bad arrival after request {last}: {event}")
    backlog = state.backlog
    klass = backlog.klass(name)
    if klass is None:
        state.out.append(Rejected(id, "unknown_class"))
        return None
    if prompt >= longest:
        state.out.append(Rejected(id, "prompt_too_long", longest - 1))
        return None
    refusal = backlog.refusal(id, name, prompt)
    if refusal is not None:
        state.out.append(refusal)
        return None
    request = Request(
        id,
        prompt,
        min(max_tokens, longest - prompt),
        name,
        klass.rank,
        tenant,
        state.now_ns,
        expires_ns,
        keys,
        state.progress,
    )
    request.priority, request.program, request.parent = priority, program, parent
    backlog.endow(request)
    state.requests[id] = request
    backlog.add(request)
    return request


def _alike(state: State, parent: RequestId, id: RequestId, prompt: int) -> bool:
    """Whether a request of so many prompt tokens may follow ``parent``, which may have ended."""
    there = state.requests.get(parent)
    return parent < id and (there is None or there.prompt_tokens == prompt)
