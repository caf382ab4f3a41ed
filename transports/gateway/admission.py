"""Whether a request that could be served is taken: its tenant's limits, and whether it would be in time.

What is refused here costs the scheduler nothing.  Lines and their lengths are the scheduler's own (``core/backlog``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stepwell.core.config import Config
from stepwell.core.errors import CapacityError
from stepwell.core.metrics import ServingMetrics
from stepwell.core.scheduler import Scheduler
from stepwell.core.types import NS_PER_MS
from stepwell.transports.gateway.limits import Cost, Limits, Ticket
from stepwell.transports.generation import Generation
from stepwell.transports.wire import Standing


class Admission:
    """In front of one scheduler, whose state and ``metrics`` say how long a request would wait."""

    def __init__(
        self, config: Config, scheduler: Scheduler, metrics: ServingMetrics, now_ns: Callable[[], int]
    ) -> None:
        self.limits = Limits(config, lambda: metrics.count("rate_limited"))
        self._scheduler = scheduler
        self._metrics = metrics
        self._now_ns = now_ns

    def check(self, standing: Standing) -> None:
        """Before anything is done for a request; raises ``CapacityError`` if its tenant has nothing left."""
        if self.limits.any and standing.counts:
            self.limits.check(standing.tenant, self._now_ns())

    def take(self, prompts: Sequence[Sequence[int]], n: int, most: int | None, standing: Standing) -> Ticket:
        """Reserve what it may cost.  Raises ``CapacityError`` if that is more than its tenant has, or if it would have
        no token in time.  ``most``: tokens of an answer, None if nothing bounds them.
        """
        lengths = [len(each) for each in prompts]
        if standing.deadline_ns:
            self._check_deadline(sum(lengths), standing)
        if not self.limits.any:
            return Ticket(None)
        most = self._scheduler.max_tokens if most is None else most
        return self.limits.take(standing.tenant, lengths, n, most, self._now_ns(), counts=standing.counts)

    def headers(self, tenant: str) -> dict[str, str]:
        """Where the tenant stands; empty without limits."""
        return self.limits.headers(tenant, self._now_ns())

    def settle(self, ticket: Ticket, generation: Generation) -> None:
        """It is over, however it ended."""
        ticket.settle(_cost_of(generation), self._now_ns())

    def ttft_ns(self, prompt_tokens: int, klass: str) -> int:
        """A guess when a request that came now would have its first token; 0 if nobody knows.

        Those before it are taken to be computed first, and if all places are taken, to leave at the pace at which
        requests ended lately.  Under a policy that respects ranks nobody of a worse class is before it.
        """
        state, metrics = self._scheduler.state, self._metrics
        known = state.backlog.klass(klass)
        ranked = state.policy.promises.respects_rank
        worst = max(each.rank for each in state.limits.classes)
        requests, tokens = state.backlog.ahead(known.rank if ranked and known is not None else worst)
        full = metrics.waiting > 0 or metrics.running >= state.limits.running_limit
        pace_ns = metrics.wait_ns(self._now_ns()) // max(metrics.waiting, 1) if full else 0
        waits_ns = pace_ns * max(requests, 1)
        if not state.speeds.measured:
            return waits_ns
        token_ps = state.speeds.token_ps
        return max(waits_ns, tokens * token_ps // 1000) + prompt_tokens * token_ps // 1000 + state.speeds.decode_ns

    def _check_deadline(self, prompt_tokens: int, standing: Standing) -> None:
        guess_ns = self.ttft_ns(prompt_tokens, standing.klass)
        if guess_ns <= standing.deadline_ns:
            return
        self._metrics.count("deadline_unreachable")
        guess_ms, most_ms = guess_ns // NS_PER_MS, standing.deadline_ns // NS_PER_MS
        raise CapacityError(
            f"the first token would come in about {guess_ms:,} ms, and {most_ms:,} ms is the deadline"
            f" of this request of class {standing.klass}",
            code="deadline_unreachable",
            retry_after_ns=guess_ns - standing.deadline_ns,
        )


def _cost_of(generation: Generation) -> Cost | None:
    """What was computed for it; None if the scheduler did not take all of it."""
    choices = generation.choices
    if not all(each.accepted for each in choices):
        return None
    prompts = {id(each.prompt): each for each in reversed(choices) if each.admitted}
    return Cost(
        sum(len(each.prompt) for each in prompts.values()),
        sum(each.cached for each in prompts.values()),
        sum(each.tokens for each in choices),
    )
