"""How much a tenant may ask for: requests and tokens a minute, and answers at once.  No clock in here.

What a request will cost is not known when it comes: its prompt, and as much of an answer as its tenant's usually have,
is reserved then, and what it did cost is settled when it ends.  All of this is in front of the scheduler, and says
nothing about whose turn it is: that is fairness, which is the policy's.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import msgspec

from stepwell.core.config import Config
from stepwell.core.errors import CapacityError
from stepwell.transports.errors import LimitReached
from stepwell.transports.gateway.bucket import Bucket
from stepwell.transports.gateway.durations import written

LOOKED_AT = 16
"""Tenants that are looked at to find one at rest, when there is no room for another."""

LEARNING = 16
"""An answer moves what is predicted of the next by one part in so many of the difference."""


RATE_HEADERS = tuple(
    f"x-ratelimit-{what}-{of}" for of in ("requests", "tokens") for what in ("limit", "remaining", "reset")
)


class Allowance(msgspec.Struct, frozen=True):
    """A tenant's limits; 0 is none."""

    requests: int = 0
    tokens: int = 0
    concurrent: int = 0

    @property
    def any(self) -> bool:
        return bool(self.requests or self.tokens or self.concurrent)


class Cost(msgspec.Struct, frozen=True):
    """What a request came to, as far as it came."""

    prompt: int = 0
    cached: int = 0
    """Of the prompt, what the cache had."""
    answer: int = 0


class _Account:
    """Of one tenant."""

    __slots__ = ("_learnt", "allowance", "open", "requests", "tokens")

    def __init__(self, allowance: Allowance, predicted: int, now_ns: int) -> None:
        self.allowance = allowance
        self.requests = Bucket(allowance.requests, now_ns) if allowance.requests else None
        self.tokens = Bucket(allowance.tokens, now_ns) if allowance.tokens else None
        self.open = {True: 0, False: 0}
        """Answers in progress: of clients, and (false) of lines of batches, which take no place of theirs."""
        self._learnt = predicted * LEARNING

    @property
    def predicted(self) -> int:
        """Tokens of an answer."""
        return max(self._learnt // LEARNING, 1)

    def learn(self, tokens: int) -> None:
        """An answer had so many."""
        self._learnt += tokens - self._learnt // LEARNING

    def at_rest(self, now_ns: int) -> bool:
        buckets = [each for each in (self.requests, self.tokens) if each is not None]
        return not any(self.open.values()) and all(each.full(now_ns) for each in buckets)

    def headers(self, now_ns: int) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, bucket in (("requests", self.requests), ("tokens", self.tokens)):
            if bucket is not None:
                found[f"x-ratelimit-limit-{name}"] = str(bucket.per_minute)
                found[f"x-ratelimit-remaining-{name}"] = str(max(bucket.left(now_ns), 0))
                found[f"x-ratelimit-reset-{name}"] = written(bucket.wait_ns(bucket.per_minute, now_ns))
        return found


class Ticket:
    """What was reserved for a request.  ``settle`` it once, however it ends; more often is harmless."""

    __slots__ = ("_account", "_cached_share", "_choices", "_requests", "_tokens")

    def __init__(
        self, account: _Account | None, choices: int = 0, requests: int = 0, tokens: int = 0, cached_share: float = 0.0
    ) -> None:
        self._account = account
        self._choices, self._requests, self._tokens = choices, requests, tokens
        self._cached_share = cached_share

    def settle(self, cost: Cost | None, now_ns: int) -> None:
        """``cost`` None: it was refused, and nothing is to be paid, not even for having asked."""
        account, self._account = self._account, None
        if account is None:
            return
        account.open[self._requests > 0] -= self._choices
        if account.requests is not None and cost is None:
            account.requests.settle(self._requests, 0, now_ns)
        if account.tokens is not None:
            account.tokens.settle(self._tokens, self._used(cost), now_ns)
        if cost is not None and cost.answer:
            each = cost.answer // self._choices
            account.learn(each)

    def _used(self, cost: Cost | None) -> int:
        if cost is None:
            return 0
        return cost.prompt - cost.cached + round(cost.cached * self._cached_share) + cost.answer


FREE = Ticket(None)
"""Of a tenant without limits."""


class Limits:
    """Of all tenants, those in use kept in memory, and no more of them than ``gateway.max_tenants``."""

    def __init__(self, config: Config, refused: Callable[[], None] = lambda: None) -> None:
        """``refused`` is called whenever a limit is reached."""
        self._refused = refused
        gateway = self._gateway = config.gateway
        everybody = Allowance(gateway.requests_per_minute, gateway.tokens_per_minute, gateway.concurrent)
        self._everybody = everybody
        self._own = {
            each.name: Allowance(
                everybody.requests if each.requests_per_minute is None else each.requests_per_minute,
                everybody.tokens if each.tokens_per_minute is None else each.tokens_per_minute,
                everybody.concurrent if each.concurrent is None else each.concurrent,
            )
            for each in config.tenants
        }
        self.any = everybody.any or any(each.any for each in self._own.values())
        """Whether anybody has a limit."""
        self._accounts: OrderedDict[str, _Account] = OrderedDict()

    def __len__(self) -> int:
        return len(self._accounts)

    @property
    def open(self) -> int:
        """Answers that tickets were given for and that have not ended."""
        return sum(sum(each.open.values()) for each in self._accounts.values())

    def check(self, tenant: str, now_ns: int) -> None:
        """Before anything is done for a request: raises ``LimitReached`` if there is not even room for the smallest.

        Answers at once are not looked at: it may be one that waits for another to end.
        """
        account = self._account(tenant, now_ns)
        if account is not None:
            self._fits(account, tenant, 0, 1, 1, now_ns)

    def take(
        self, tenant: str, prompts: Sequence[int], n: int, most: int, now_ns: int, *, counts: bool = True
    ) -> Ticket:
        """Reserve for a request with prompts of so many tokens, ``n`` answers to each, of ``most`` tokens at most.

        Not ``counts``: it is none of the tenant's requests a minute, as lines of a batch are not, and takes no place of
        its answers at once, but one of as many again.  Raises ``LimitReached``.
        """
        account = self._account(tenant, now_ns)
        if account is None:
            return FREE
        choices, requests = n * len(prompts), int(counts)
        tokens = sum(prompts) + choices * min(most, account.predicted)
        if account.tokens is not None:  # what is only predicted makes no request impossible
            tokens = max(sum(prompts), min(tokens, account.tokens.per_minute))
        self._fits(account, tenant, choices, requests, tokens, now_ns)
        if account.requests is not None:
            account.requests.reserve(requests, now_ns)
        if account.tokens is not None:
            account.tokens.reserve(tokens, now_ns)
        account.open[counts] += choices
        return Ticket(account, choices, requests, tokens, self._gateway.cached_share)

    def headers(self, tenant: str, now_ns: int) -> dict[str, str]:
        """``x-ratelimit-*``: the limit, what is left, and until when all of it is; empty without limits."""
        account = self._accounts.get(tenant)
        return account.headers(now_ns) if account is not None else {}

    def _account(self, tenant: str, now_ns: int) -> _Account | None:
        """None if it has no limits."""
        if not self.any:
            return None
        account = self._accounts.get(tenant)
        if account is not None:
            self._accounts.move_to_end(tenant)
            return account
        allowance = self._own.get(tenant, self._everybody)
        if not allowance.any:
            return None
        if len(self._accounts) >= self._gateway.max_tenants:
            self._make_room(now_ns)
        account = self._accounts[tenant] = _Account(allowance, self._gateway.predicted_tokens, now_ns)
        return account

    def _make_room(self, now_ns: int) -> None:
        """Forget one that is as a new one would be; those used last are the last to be looked at."""
        for _ in range(min(LOOKED_AT, len(self._accounts))):
            tenant, account = self._accounts.popitem(last=False)
            if account.at_rest(now_ns):
                return
            self._accounts[tenant] = account
        raise CapacityError(f"{len(self._accounts)} tenants are busy, and no more are known", code="too_many_tenants")

    def _fits(self, account: _Account, tenant: str, choices: int, requests: int, tokens: int, now_ns: int) -> None:
        def reached(what: str, limit: int, needs: str, wait_ns: int, *, retry: bool = True) -> LimitReached:
            self._refused()
            message = f"tenant {tenant!r} has reached its limit of {limit:,} {what}: {needs}"
            return LimitReached(message, wait_ns, account.headers(now_ns), retry=retry)

        most = account.allowance.concurrent
        busy = account.open[requests > 0]
        if most and choices and busy + choices > most:
            needs = f"{busy} are in progress, and this asks for {choices}"
            raise reached("answers at once (concurrent)", most, needs, 0, retry=choices <= most)
        for what, bucket, wanted in (
            ("requests a minute (requests_per_minute)", account.requests, requests),
            ("tokens a minute (tokens_per_minute)", account.tokens, tokens),
        ):
            if bucket is None or wanted <= bucket.left(now_ns):
                continue
            fits = wanted <= bucket.per_minute
            needs = f"{max(bucket.left(now_ns), 0):,} are left, and this asks for {wanted:,}"
            needs += "" if fits else ", which it never holds"
            wait_ns = bucket.wait_ns(wanted, now_ns)
            raise reached(what, bucket.per_minute, needs, wait_ns, retry=fits)
