"""A policy's decision for one step, as data.

The core applies a plan in this order: rejects, preemptions, holds, the decode group's own growth, resumes, admissions,
slices.  The group comes before newcomers so that a running request keeps its place; ADR 2 says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from stepwell.core.types import BlockReason, PreemptMode, RequestId


class Preemption(msgspec.Struct, gc=False):
    """Take ``request`` off the device; ``beneficiary`` is for whom (0: nobody in particular)."""

    request: RequestId
    mode: PreemptMode
    reason: str
    beneficiary: RequestId = 0


class Obstacle(msgspec.Struct, gc=False):
    """Why the head of the line is not admitted now; ``short`` is how many pages, seats or tokens are missing."""

    request: RequestId
    reason: BlockReason
    short: int = 0


Part = tuple[RequestId, int]
"""(request, tokens to compute in this step)."""


class StepPlan(msgspec.Struct, gc=False):
    """What to do in the next step.

    ``decode`` runs the decode group, all of it except ``hold``.  ``slices`` continue running requests that are outside
    the group (a prefill, or one that was held).  ``admit`` takes waiting requests with their first slice; pages for
    their whole present length are reserved, or with ``reserve`` "slice" must be free and only those that the slice
    fills are taken: later slices take theirs as they come, and may find none.  ``repeat``: for how many *further* steps
    the plan holds if nothing happens; only a plan of nothing but the decode group may repeat.  ``wake_ns``: ask again
    at this time at the latest if no step is in flight then (0: no need); it also ends the repeats.
    """

    decode: bool = True
    repeat: int = 0
    wake_ns: int = 0
    admit: Sequence[Part] = ()
    reserve: Literal["present", "slice"] = "present"
    slices: Sequence[Part] = ()
    preempt: Sequence[Preemption] = ()
    resume: Sequence[RequestId] = ()
    hold: Sequence[RequestId] = ()
    reject: Sequence[tuple[RequestId, str]] = ()
    blocked: Obstacle | None = None


class BrokenRuleError(Exception):
    """Internal to the core: becomes a ``PolicyFault`` instruction.

    Not in ``plan_check``, which may be compiled: a compiled ``except`` checks the class of what it names, and is upset
    if the next handler gives the same name to something else.
    """

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(rule, detail)
        self.rule = rule
        self.detail = detail
