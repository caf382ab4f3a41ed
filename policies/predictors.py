"""Predictors of output lengths: none, a number, what a tenant's past says, and (in simulations) the truth."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from stepwell.core.protocols import RequestView
from stepwell.core.types import RequestId

Tokens = Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]


class Nothing:
    """Knows nothing: an answer has one token at least, and no more is assumed."""

    name = "none"

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """None."""

    def __init__(self, options: Options) -> None: ...

    def predict(self, request: RequestView) -> int:
        return 1

    def learn(self, request: RequestView) -> None: ...


class Constant:
    """Every request has the same output length, so that work is the prompt's alone."""

    name = "constant"

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """``tokens``: the length."""

        tokens: Tokens = 256

    def __init__(self, options: Options) -> None:
        self.tokens = options.tokens

    def predict(self, request: RequestView) -> int:
        return min(self.tokens, request.max_tokens)

    def learn(self, request: RequestView) -> None: ...


class Quantile:
    """A quantile of the output lengths of the tenant's latest requests; a fixed guess until there are some."""

    name = "quantile"

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """What is remembered of each tenant, and what is made of it."""

        quantile: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5
        window: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 128
        """Latest requests of a tenant that count."""
        tenants: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1024
        """Tenants remembered; beyond it, whoever has not finished a request for the longest is forgotten."""
        first: Tokens = 256
        """The guess for a tenant of which nothing is known."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._latest: dict[str, deque[int]] = {}
        self._sorted: dict[str, list[int]] = {}

    def predict(self, request: RequestView) -> int:
        known = self._sorted.get(request.tenant)
        guess = known[int(self.options.quantile * (len(known) - 1))] if known else self.options.first
        return min(guess, request.max_tokens)

    def learn(self, request: RequestView) -> None:
        latest = self._latest.pop(request.tenant, None)
        if latest is None:
            latest = deque()
        self._latest[request.tenant] = latest  # the last in order is the last that finished one
        self._add(request.tenant, latest, request.generated)
        if len(self._latest) > self.options.tenants:
            oldest = next(iter(self._latest))
            del self._latest[oldest], self._sorted[oldest]

    def _add(self, tenant: str, latest: deque[int], tokens: int) -> None:
        ordered = self._sorted.setdefault(tenant, [])
        latest.append(tokens)
        insort(ordered, tokens)
        if len(latest) > self.options.window:
            del ordered[bisect_left(ordered, latest.popleft())]

    def dump(self) -> object:
        return [[tenant, list(latest)] for tenant, latest in self._latest.items()]

    def load(self, data: Any) -> None:
        self._latest, self._sorted = {}, {}
        for tenant, lengths in data[-self.options.tenants :]:
            latest = self._latest[tenant] = deque()
            for tokens in lengths:
                self._add(tenant, latest, tokens)


class Oracle:
    """The true output lengths, which only a simulation knows: the bound on what any predictor can do."""

    name = "oracle"
    simulation_only = True

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """None: the truth has none."""

    def __init__(self, options: Options) -> None:
        self._lengths: Mapping[RequestId, int] = {}

    def reveal(self, lengths: Mapping[RequestId, int]) -> None:
        """Be told by the simulator."""
        self._lengths = lengths

    def predict(self, request: RequestView) -> int:
        return self._lengths.get(request.id, request.max_tokens)

    def learn(self, request: RequestView) -> None: ...

    def dump(self) -> object:
        return list(self._lengths.items())

    def load(self, data: Any) -> None:
        self._lengths = dict(data)
