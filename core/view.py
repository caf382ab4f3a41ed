"""What a policy sees while it plans: live, read-only, and cheap to ask (see ``protocols.SchedulerView``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import cast

from stepwell.core.forking import shared_tokens
from stepwell.core.group import DecodeGroup
from stepwell.core.limits import SchedulerLimits
from stepwell.core.protocols import KVAllocator, RequestView
from stepwell.core.request import Request
from stepwell.core.speeds import Speeds
from stepwell.core.types import RequestId, StepId

_MASK = (1 << 64) - 1


def keyed_draw(seed: int, request: RequestId, step: StepId) -> float:
    """A draw in [0, 1) that depends on its key alone (SplitMix64's finaliser; Steele, Lea, Flood, OOPSLA 2014)."""
    z = (seed * 0x9E3779B97F4A7C15 + request * 0xBF58476D1CE4E5B9 + step * 0x94D049BB133111EB + 1) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((z ^ (z >> 31)) >> 11) / (1 << 53)


class View:
    """The scheduler's tables behind read-only proxies.  ``now_ns`` and ``step`` are set before each plan."""

    __slots__ = (
        "_allocator",
        "_draining",
        "_group",
        "_live",
        "_loose",
        "_requests",
        "_seed",
        "_shares",
        "_speeds",
        "_waiting",
        "decoding",
        "loose",
        "now_ns",
        "page_size",
        "running_limit",
        "step",
        "swapped",
        "token_budget",
        "total_pages",
        "waiting",
    )

    def __init__(
        self,
        limits: SchedulerLimits,
        allocator: KVAllocator,
        group: DecodeGroup,
        requests: dict[RequestId, Request],
        waiting: dict[RequestId, Request],
        loose: dict[RequestId, Request],
        swapped: dict[RequestId, Request],
        draining: dict[RequestId, Request],
        speeds: Speeds,
        live: dict[str, int],
    ) -> None:
        self._allocator = allocator
        self._group = group
        self._loose = loose
        self._requests = requests
        self._waiting = waiting
        self._draining = draining
        self._seed = limits.seed
        self._live = live
        self._shares = {
            each.name: max(1, int(each.budget_share * limits.token_budget))
            for each in limits.classes
            if each.budget_share < 1
        }
        self._speeds = speeds
        self.now_ns = 0
        self.step: StepId = 1
        self.waiting: Mapping[RequestId, RequestView] = MappingProxyType(waiting)
        self.loose: Mapping[RequestId, RequestView] = MappingProxyType(loose)
        self.swapped: Mapping[RequestId, RequestView] = MappingProxyType(swapped)
        self.decoding: Mapping[RequestId, RequestView] = MappingProxyType(group.members)
        self.token_budget = limits.token_budget
        self.running_limit = limits.running_limit
        self.total_pages = allocator.total_pages
        self.page_size = allocator.page_size

    @property
    def running(self) -> int:
        return len(self._group.members) + len(self._loose) + len(self._draining)

    @property
    def free_pages(self) -> int:
        return self._allocator.free_pages

    @property
    def returning_pages(self) -> int:
        return self._allocator.returning_pages

    @property
    def free_host_pages(self) -> int:
        return self._allocator.free_host_pages

    def decoding_tokens(self) -> int:
        return self._group.known()

    def growth(self) -> int:
        return len(self._group.growing())

    def growing(self) -> Sequence[RequestView]:
        return list(self._group.growing().values())

    def pages_missing(self, request: RequestView, headroom: int = 0) -> int:
        waiting = self._waiting.get(cast(Request, request).id)
        if waiting is None:
            tokens = request.limit if request.protected else request.known
            return self._allocator.pages_missing(tokens, request.limit, headroom)
        pages, keys = self._found(waiting)
        return self._allocator.pages_missing(waiting.reserve_tokens, waiting.limit, headroom - pages, keys)

    def pages_needed(self, request: RequestView) -> int:
        waiting = self._waiting.get(cast(Request, request).id)
        if waiting is None:
            tokens = request.limit if request.protected else request.known
            return self._allocator.pages_needed(tokens, request.limit)
        pages, keys = self._found(waiting)
        return self._allocator.pages_needed(waiting.reserve_tokens, waiting.limit, keys) - pages

    def cached_tokens(self, request: RequestView) -> int:
        waiting = self._waiting.get(cast(Request, request).id)
        if waiting is None or not (waiting.parent or waiting.keys):
            return 0
        return shared_tokens(waiting, self._requests) or self._allocator.cached_tokens(
            waiting.prefix_keys(self._allocator.key_tokens)
        )

    def _found(self, request: Request) -> tuple[int, Sequence[int]]:
        """Pages that a waiting request would share with its parent, or else the keys by which it may find some.

        One that comes back from the host brings its pages along.
        """
        if not (request.parent or request.keys):
            return 0, ()
        shared = shared_tokens(request, self._requests)
        if shared:
            return shared // self.page_size if self._allocator.shares_pages else 0, ()
        return 0, request.prefix_keys(self._allocator.key_tokens)

    def slice_pages(self, request: RequestView, tokens: int) -> int:
        missing = request.computed + tokens - request.capacity
        return -(-missing // self.page_size) if missing > 0 else 0

    def prefill_limit(self, request: RequestView) -> int:
        if not self._shares:
            return self.token_budget
        own = request.klass
        share = self._shares.get(own)
        if share is not None:
            for klass, count in self._live.items():
                if count and klass != own:
                    return share
        return self.token_budget

    def exclusive_pages(self, request: RequestView) -> int:
        return self._allocator.exclusive_pages(request.id)

    def swap_ns(self, request: RequestView) -> int:
        return 2 * -(-request.computed // self.page_size) * self._speeds.page_ns

    def recompute_ns(self, request: RequestView) -> int:
        return request.computed * self._speeds.token_ps // 1000

    def random(self, request: RequestView) -> float:
        return keyed_draw(self._seed, request.id, self.step)
