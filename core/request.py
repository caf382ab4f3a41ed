"""One request's state: its place in the transition table, and how far its tokens have come.

Token positions are counted, never seen.  ``computed`` positions have KV on the device, ``pending`` more are known and
still to be computed; when ``pending`` reaches 0 the step samples one token, which is then the one pending.  So a
prefill, a decode and a recomputation are the same thing with different numbers.

Members of the decode group advance together: ``computed`` is ``base`` plus the group's step counter, so that nothing
is written per request and step.  Outside the group the counter is one that stands still.
"""

from __future__ import annotations

from stepwell.core.errors import InvariantError
from stepwell.core.types import FOREVER, WAITING, BoxedId, RequestId, RequestState, StepId


class StepCounter:
    """Counts launched steps; the decode group is one that ticks.  ``last_step`` is the id of the last one counted."""

    __slots__ = ("last_step", "launched")

    def __init__(self) -> None:
        self.launched = 0
        self.last_step: StepId = 0


class Progress:
    """The last step that is done; one object shared by a scheduler and its requests."""

    __slots__ = ("done",)

    def __init__(self) -> None:
        self.done: StepId = 0


class Phase:
    """Members whose page tables are full at the same count of launched steps, ``full_at``."""

    __slots__ = ("full_at", "members")

    def __init__(self, full_at: int) -> None:
        self.full_at = full_at
        self.members: dict[RequestId, Request] = {}


NO_PHASE = Phase(-1)
"""Of every request outside the decode group."""

STANDING = StepCounter()
"""The counter of every request outside the decode group: it never ticks."""


class Request:
    """A live request.  Only the scheduler and its decode group write to it; policies read it as a ``RequestView``."""

    __slots__ = (
        "aging_ns",
        "arrival_ns",
        "base",
        "capacity",
        "counter",
        "end_at",
        "excused",
        "expires_ns",
        "failures",
        "id",
        "joined_at",
        "keys",
        "klass",
        "last_step",
        "left_at",
        "limit",
        "max_tokens",
        "parent",
        "pending",
        "phase",
        "preemptions",
        "priority",
        "program",
        "progress",
        "prompt_tokens",
        "protected",
        "rank",
        "shown",
        "stands",
        "started",
        "state",
        "story",
        "tenant",
        "tpot_ns",
        "ttft_ns",
        "weight",
    )

    def __init__(
        self,
        id: BoxedId,
        prompt_tokens: int,
        max_tokens: int,
        klass: str,
        rank: int,
        tenant: str,
        arrival_ns: int,
        expires_ns: int,
        keys: list[int],
        progress: Progress,
    ) -> None:
        self.id: BoxedId = id
        self.klass = klass
        self.rank = rank
        self.tenant = tenant
        self.arrival_ns = arrival_ns
        self.expires_ns = expires_ns
        self.priority = 0
        self.program = ""
        self.ttft_ns = 0
        self.tpot_ns = 0
        self.aging_ns = 0
        self.weight = 1.0
        self.prompt_tokens = prompt_tokens
        self.max_tokens = max_tokens
        self.limit = prompt_tokens + max_tokens - 1
        """KV positions it can ever need: the last output token is never fed back."""
        self.keys = keys
        self.parent: RequestId = 0
        """Whose prompt is this one too; 0: nobody's."""
        self.stands = False
        """Its whole prompt was computed by a step that is done, and not dropped since."""
        self.state = WAITING
        self.story: list[tuple[int, RequestState, str]] = [(arrival_ns, WAITING, "arrived")]
        self.counter = STANDING
        self.base = 0
        self.pending = prompt_tokens
        self.capacity = 0
        """Tokens its page table can hold; while it is in the group, ``base + phase.full_at`` says it instead."""
        self.last_step: StepId = 0
        """The last launched step that names it outside the group."""
        self.progress = progress
        self.preemptions = 0
        self.failures = 0
        self.excused: RequestId = 0
        """The last request of a better class that a swap not counted as a preemption made room for."""
        self.protected = False
        self.started = False
        self.joined_at = FOREVER
        self.left_at = -1
        self.phase = NO_PHASE
        self.end_at = -1
        self.shown = False

    @property
    def computed(self) -> int:
        return self.base + self.counter.launched

    @property
    def known(self) -> int:
        return self.base + self.counter.launched + self.pending

    @property
    def generated(self) -> int:
        return self.base + self.counter.launched + self.pending - self.prompt_tokens

    @property
    def ready(self) -> bool:
        done = self.progress.done
        return self.last_step <= done and (not self.shown or self.counter.last_step <= done)

    @property
    def reserve_tokens(self) -> int:
        """Tokens to reserve pages for when it is taken onto the device: its present length, or the greatest."""
        return self.limit if self.protected else self.known

    def prefix_keys(self, key_tokens: int) -> list[int]:
        """Keys, of ``key_tokens`` each, that its admission may find: at least one known token is left to compute."""
        keys = self.keys
        if keys and len(keys) * key_tokens >= self.known:
            return keys[:-1]
        return keys

    def move(self, state: RequestState, now_ns: int, why: str) -> None:
        """Go to ``state``; raises ``InvariantError`` with the whole story if the table does not allow it."""
        if state not in self.state.successors:
            raise InvariantError(f"request {self.id} cannot go from {self.state.value} to {state.value}: {self.tell()}")
        self.state = state
        self.story.append((now_ns, state, why))

    def tell(self) -> str:
        """Its life so far, in one line."""
        return "; ".join(f"{at} ns {state.value} ({why})" for at, state, why in self.story)
