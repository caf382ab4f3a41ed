"""Every interface between rooms, in the field's words.  Plugins implement these; nothing else is asked of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from stepwell.core.execution import Backend as Backend
from stepwell.core.execution import BackendInfo as BackendInfo
from stepwell.core.execution import BatchShape as BatchShape
from stepwell.core.execution import CostModel as CostModel
from stepwell.core.execution import StepResult as StepResult
from stepwell.core.execution import Tokenizer as Tokenizer
from stepwell.core.kv_memory import CopyPlan as CopyPlan
from stepwell.core.kv_memory import KVAllocator as KVAllocator
from stepwell.core.kv_memory import KVUsage as KVUsage
from stepwell.core.kv_memory import NotNow as NotNow
from stepwell.core.kv_memory import Reservation as Reservation
from stepwell.core.plan import StepPlan
from stepwell.core.policy_event import PolicyEvent as PolicyEvent
from stepwell.core.policy_event import PolicyEventKind as PolicyEventKind
from stepwell.core.request_view import RequestView as RequestView
from stepwell.core.types import RequestId, StepId

API_VERSION = 1
"""Of all that this module asks of a plugin or shows to one.  A plugin class may state ``api_version``, the version that
it was written for.  Whatever is added raises this number; older plugins are accepted."""

OLDEST_API_VERSION = 1
"""Whatever is taken away, or changes its meaning, raises this one too: a plugin for an older version is refused."""


class Promises(msgspec.Struct, frozen=True):
    """What a policy guarantees beyond the one duty of all; conformance holds it to these."""

    work_conserving: bool = False
    """While everybody in line would fit (seats, budget, pages beside a small reserve), somebody is taken in."""
    bounded_wait: bool = False
    """Every request that can run is admitted after finitely many steps, whatever else arrives."""
    respects_rank: bool = False
    """A request never evicts one of equal or better rank, and is never admitted past a waiting better-ranked one."""
    keeps_work: bool = False
    """What somebody who gives way has computed is kept in the host tier, while there is room for it."""


class SchedulerView(Protocol):
    """The scheduler's state as a policy may see it while planning: live, read-only, cheap to ask."""

    @property
    def now_ns(self) -> int: ...
    @property
    def step(self) -> StepId:
        """The step being planned."""
        ...

    @property
    def waiting(self) -> Mapping[RequestId, RequestView]: ...
    @property
    def swapped(self) -> Mapping[RequestId, RequestView]:
        """Off the device with their pages in the host tier, or on the way there."""
        ...

    @property
    def decoding(self) -> Mapping[RequestId, RequestView]:
        """The decode group: they advance together, one token a step."""
        ...

    @property
    def loose(self) -> Mapping[RequestId, RequestView]:
        """Running outside the group: prefilling, held last step, or being swapped in."""
        ...

    @property
    def running(self) -> int:
        """Seats taken: the decode group and the loose ones."""
        ...

    @property
    def running_limit(self) -> int: ...
    @property
    def token_budget(self) -> int: ...
    @property
    def free_pages(self) -> int: ...
    @property
    def returning_pages(self) -> int:
        """Pages that come free by themselves when the steps in flight are done."""
        ...

    @property
    def total_pages(self) -> int: ...
    @property
    def free_host_pages(self) -> int: ...
    @property
    def page_size(self) -> int: ...
    def decoding_tokens(self) -> int:
        """Prompt and output tokens known of the decode group, all members together: what a step of it reads."""
        ...

    def growth(self) -> int:
        """Pages that the decode group needs in this step (an upper bound, exact unless somebody just left)."""
        ...

    def growing(self) -> Sequence[RequestView]:
        """The members of the decode group that need a page in this step, in the order in which they joined."""
        ...

    def pages_missing(self, request: RequestView, headroom: int = 0) -> int:
        """Free pages that are missing to admit or resume ``request`` now (0: it fits), keeping ``headroom`` free.

        A negative ``headroom`` counts pages that the same plan is about to free.
        """
        ...

    def pages_needed(self, request: RequestView) -> int:
        """Pages that admitting or resuming ``request`` takes: its present length (its greatest, once protected)."""
        ...

    def slice_pages(self, request: RequestView, tokens: int) -> int:
        """Pages that a loose request lacks to compute ``tokens`` more."""
        ...

    def cached_tokens(self, request: RequestView) -> int:
        """Tokens of a waiting request's prompt that are in the KV cache now: admitting it would not compute them."""
        ...

    def prefill_limit(self, request: RequestView) -> int:
        """Prompt tokens that all of its class together may take in this step: its share, while others have work."""
        ...

    def exclusive_pages(self, request: RequestView) -> int:
        """Device pages that would come free if ``request`` left."""
        ...

    def swap_ns(self, request: RequestView) -> int:
        """What sending a running ``request`` to the host and bringing it back is expected to cost, from the speed of
        the latest copies (``core.speeds``: what is assumed before any was measured)."""
        ...

    def recompute_ns(self, request: RequestView) -> int:
        """What computing a running ``request``'s tokens again is expected to cost, from the speed of the latest
        prefills."""
        ...

    def random(self, request: RequestView) -> float:
        """A draw in [0, 1) keyed by (seed, request, step): asking twice gives the same number."""
        ...


class SchedulerPolicy(Protocol):
    """Decides.  Deterministic; time and randomness come from the view only.

    A policy class has ``name``, ``promises``, a nested ``Options`` struct, and is called with an instance of it; it may
    state ``api_version``.
    Its state must be a function of the live requests: a policy rebuilt by observing them again decides the same.  One
    that must remember more (who was served how much) is a ``Remembering`` one as well.
    """

    @property
    def promises(self) -> Promises: ...
    def observe(self, event: PolicyEvent) -> None: ...
    def plan(self, view: SchedulerView) -> StepPlan: ...


@runtime_checkable
class Remembering(Protocol):
    """A policy or a part of one whose state is more than a function of the live requests.

    A policy rebuilt by observing the live requests, and then given what ``dump`` said, decides the same.
    """

    def dump(self) -> object:
        """What the live requests do not tell, as JSON-like data; bounded, however long it has run."""
        ...

    def load(self, data: object) -> None:
        """Take over what ``dump`` said; called after the live requests were observed."""
        ...


class Predictor(Protocol):
    """Guesses how many output tokens a request will have; a part of policies that order by work.

    Deterministic.  A predictor class has ``name`` and a nested ``Options`` struct, may be ``Remembering``, and says
    ``simulation_only = True`` if it knows what nobody can know while serving.
    """

    def predict(self, request: RequestView) -> int:
        """Output tokens in all, at least 1; asked once, when the request arrives."""
        ...

    def learn(self, request: RequestView) -> None:
        """The request has ended: its ``generated`` is what it came to."""
        ...
