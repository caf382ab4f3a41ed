"""The scheduler's tables, and the few operations that events and plans share.

Every live request is in ``requests`` and in exactly one other place: ``waiting``, the decode ``group``, ``loose``
(running outside the group), ``draining`` (its last token is in flight), ``swapped`` (its pages are in the host tier,
or on their way there) or ``followers`` (its parent's prompt is not computed yet).
"""

from __future__ import annotations

from collections import deque
from typing import Final

from stepwell.core import kinds
from stepwell.core.backlog import Backlog
from stepwell.core.errors import PLUGIN_RAISES, InvariantError, describe
from stepwell.core.forking import Followers
from stepwell.core.group import DecodeGroup
from stepwell.core.instructions import Instruction, Preempted
from stepwell.core.limits import SchedulerLimits
from stepwell.core.protocols import KVAllocator, PolicyEvent, PolicyEventKind, SchedulerPolicy
from stepwell.core.request import Progress, Request
from stepwell.core.speeds import Speeds
from stepwell.core.types import DECODING, FINISHED, PREFILLING, WAITING, FinishReason, PreemptMode, RequestId, StepId
from stepwell.core.view import View

_NOBODY: Final[dict[RequestId, Request]] = {}
_NO_COPIES: Final[list[Request]] = []
_NO_PROMPTS: Final[list[tuple[Request, int]]] = []
# Of most steps; nobody writes to them.


class StepRecord:
    """A step in flight: what must happen when it is done.

    ``tick`` is the group's count with this step launched, or 0 if the group took no part.  ``sampled`` are the loose
    requests that sample in it, ``copies`` those being swapped out or in, ``last`` those whose final token (by
    ``max_tokens``) it computes.  ``computed`` are requests with page keys and the length of prompt they have after it.
    ``prefill`` tokens are computed in slices, and ``pages`` copied: what its time is measured by.

    Most steps only decode: ``sampled``, ``copies`` and ``computed`` are shared and empty until ``open``.
    """

    __slots__ = ("computed", "copies", "id", "last", "pages", "prefill", "sampled", "tick")

    def __init__(self, id: StepId, tick: int, last: list[Request]) -> None:
        self.id = id
        self.tick = tick
        self.last = last
        self.sampled = _NOBODY
        self.copies = _NO_COPIES
        self.computed = _NO_PROMPTS
        self.prefill = 0
        self.pages = 0

    def open(self) -> StepRecord:
        """It may be written to."""
        self.sampled, self.copies, self.computed = {}, [], []
        return self

    def samples(self, request: Request) -> bool:
        """Whether a token of ``request`` is sampled in this step."""
        return request.joined_at < self.tick <= request.left_at or request.id in self.sampled


class State:
    """See the module.  ``out`` collects the instructions of the batch of events being handled."""

    def __init__(self, limits: SchedulerLimits, allocator: KVAllocator, policy: SchedulerPolicy) -> None:
        self.limits = limits
        self.allocator = allocator
        self.policy = policy
        self.now_ns = 0
        self.next_step: StepId = 1
        self.progress = Progress()
        self.backlog = Backlog(limits)
        self.requests: dict[RequestId, Request] = {}
        self.waiting: dict[RequestId, Request] = {}
        self.loose: dict[RequestId, Request] = {}
        self.swapped: dict[RequestId, Request] = {}
        self.draining: dict[RequestId, Request] = {}
        self.followers = Followers()
        self.group = DecodeGroup(allocator.page_size)
        self.inflight: deque[StepRecord] = deque()
        self.joining: list[Request] = []
        self.out: list[Instruction] = []
        self.fault: tuple[str, str] | None = None
        self.silent_steps = 0
        """Steps launched since the last one that samples a token."""
        self.speeds = Speeds(allocator.page_size)
        self.view = View(
            limits,
            allocator,
            self.group,
            self.requests,
            self.waiting,
            self.loose,
            self.swapped,
            self.draining,
            self.speeds,
            self.backlog.live,
        )

    def tell(self, kind: PolicyEventKind, request: Request) -> None:
        """Let the policy observe; if it fails, remember the fault and go on: no request may be lost to it."""
        try:
            self.policy.observe(PolicyEvent(kind, request, self.now_ns))
        except PLUGIN_RAISES as error:
            self.fault = self.fault or ("observe raised", describe(error))

    def arrive(self, request: Request) -> None:
        """A new request waits: for the prompt of its parent, or else for the device, and the policy is told."""
        parent = self.requests.get(request.parent)
        if parent is not None and not parent.stands:
            self.followers.add(request)
            return
        self.waiting[request.id] = request
        self.tell("arrived", request)

    def prompts_done(self, step: StepRecord) -> bool:
        """Of those that a finished step sampled for, the whole prompt is computed: nobody waits for it any more.

        Whether that is news of anybody.
        """
        news = False
        for request in step.sampled.values():
            if not request.stands and request.state is not WAITING:
                news = request.stands = True
                for follower in self.followers.take(request.id):
                    self.arrive(follower)
        return news

    def take_out(self, request: Request) -> None:
        """Remove ``request`` from the place it is in (not from ``requests``)."""
        id = request.id
        if request.counter is self.group:
            self.group.leave(request)
        elif (
            self.loose.pop(id, None) is None
            and self.waiting.pop(id, None) is None
            and self.draining.pop(id, None) is None
            and self.swapped.pop(id, None) is None
            and not self.followers.remove(request)
        ):
            raise InvariantError(f"request {id} is in no table: {request.tell()}")

    def visible_tokens(self, request: Request) -> int:
        """Output tokens of ``request`` that exist, so without those of steps still in flight."""
        tokens = request.generated
        for step in self.inflight:
            if step.samples(request):
                tokens -= 1
        return tokens

    def publish(self, step: StepRecord) -> None:
        """What a finished step computed of prompts can be found from now on, unless its request left meanwhile."""
        for request, tokens in step.computed:
            if request.state is PREFILLING or request.state is DECODING:
                self.allocator.publish(request.id, tokens, request.keys, request.tenant)

    def publish_answer(self, id: RequestId, keys: list[int]) -> None:
        """``keys`` identify pages behind those of a request's prompt; they can be found from now on as far as they are
        computed.  Nothing is published of a request with slices or copies in flight: it may be anywhere."""
        request = self.requests.get(id)
        if request is None or request.last_step > self.progress.done:
            return
        if request.state is PREFILLING or request.state is DECODING:
            tokens = request.computed - sum(step.samples(request) for step in self.inflight)
            self.allocator.publish(id, tokens, request.keys + keys, request.tenant)

    def finish(self, request: Request, reason: FinishReason, tokens: int, why: str = "") -> None:
        """The request's one end: pages given back (after the last step that names them), everybody told."""
        pages = 0
        waits = request.state is WAITING
        unknown = waits and request in self.followers
        self.take_out(request)
        self.backlog.end(request)
        if not request.started:
            self.backlog.remove(request)
        if not waits:
            pages = self.allocator.exclusive_pages(request.id)
            self.allocator.free(request.id, request.last_step)
        request.move(FINISHED, self.now_ns, reason)
        del self.requests[request.id]
        self.out.append(kinds.FINISHED(request.id, reason, tokens, pages, why))
        if not unknown:
            self.tell("finished", request)
        if self.followers.by_parent:
            self._succeed(request)

    def _succeed(self, parent: Request) -> None:
        """Its prompt was never computed: the first of its followers does that now, for the others."""
        heir: RequestId = 0
        for follower in self.followers.take(parent.id):
            follower.parent = heir
            heir = heir or follower.id
            self.arrive(follower)

    def count_preemption(self, request: Request) -> None:
        """A policy sent it away once more.

        Not counted are failed steps (``max_failures`` bounds them) and swaps for a request of a better class: they lose
        no work, and each such request excuses one swap of a victim.
        """
        request.preemptions += 1
        limit = self.limits.max_preemptions
        request.protected = bool(limit) and request.preemptions >= limit

    def requeue(self, request: Request, mode: PreemptMode, reason: str, beneficiary: RequestId, tokens: int) -> None:
        """Back to the waiting line with nothing on the device; ``tokens`` computed positions are lost.

        The caller has taken it out of its place.  Output tokens stay known and are computed again with the prompt.
        """
        pages = self.allocator.exclusive_pages(request.id)
        self.allocator.free(request.id, request.last_step)
        request.pending += request.base
        request.base = 0
        request.capacity = 0
        request.stands = False
        request.move(WAITING, self.now_ns, reason)
        self.waiting[request.id] = request
        self.out.append(Preempted(request.id, mode, reason, beneficiary, tokens, pages))
        self.tell("preempted", request)
