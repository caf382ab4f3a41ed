"""The numbers a scheduler works within, and the classes of requests and the tenants it knows."""

from __future__ import annotations

import msgspec

MAX_BARREN_PLANS = 4
"""A policy whose plans come to nothing is asked again at most so often for one batch of events."""

AUDIT_TURNS = 16_384
"""How often, in calls of ``handle``, every law about tables and pages is checked in production (about 1 ms each)."""

MAX_SILENT_STEPS = 10_000
"""Steps in a row without a token after which a policy is taken to run in circles; twice the pool's tokens are added.

Running prefills hold pages for all their tokens, and a step computes one at least: so many steps are always enough.
"""

MAX_IDLE_WAKES = 100_000
"""Times in a row that a policy may ask to be woken and then do nothing although there is work."""


class ClassLimits(msgspec.Struct, frozen=True):
    """A class of requests.  ``rank`` 0 is served first; ``queue_share`` is its part of the waiting line, in (0, 1].

    ``ttft_ns`` and ``tpot_ns`` are its objectives, 0 for none.  ``aging_ns``: as ``RequestView.aging_ns``;
    ``budget_share``: the part of a step's tokens that its prefills may take while other classes have work, in (0, 1].
    """

    name: str
    rank: int = 0
    queue_share: float = 1.0
    ttft_ns: int = 0
    tpot_ns: int = 0
    aging_ns: int = 0
    budget_share: float = 1.0


class TenantLimits(msgspec.Struct, frozen=True):
    """A tenant and its weight: of two that both wait, one of twice the weight is to be given twice as much."""

    name: str
    weight: float = 1.0


DEFAULT_CLASSES = (ClassLimits("chat", 0), ClassLimits("batch", 1, 0.9))


class SchedulerLimits(msgspec.Struct, frozen=True):
    """Budgets and bounds.  Counts are of requests unless the name says tokens; 0 means "no bound" for ``max_*``.

    ``token_budget`` and ``running_limit`` bound one step (no more run than the budget has tokens for); ``depth`` the
    steps launched but not done.  ``max_context`` bounds prompt and output together, beside what the page pool can hold
    for one request alone.  ``max_preemptions`` is how often one request may be preempted before its greatest length is
    reserved for it.
    """

    token_budget: int = 2048
    running_limit: int = 256
    depth: int = 1
    max_waiting: int = 100_000
    max_waiting_tokens: int = 0
    max_context: int = 0
    max_preemptions: int = 8
    max_failures: int = 3
    """Failed steps that one request may live through."""
    seed: int = 0
    classes: tuple[ClassLimits, ...] = DEFAULT_CLASSES
    tenants: tuple[TenantLimits, ...] = ()
    """Those that differ from others; whoever is not named has the weight 1."""
