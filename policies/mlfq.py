"""Skip-join multi-level feedback queue: new requests join the level that their prompt deserves, and sink with service.

Source: Wu et al., "Fast Distributed Inference Serving for Large Language Models" (FastServe), NSDI'26.
Level ``i`` has a quantum of ``quantum`` × 2^i output tokens.  A request joins the best level whose quantum holds its
first step, which its prompt tells, so long prompts skip levels; having used up a level's quantum it goes on in the
next one.  A running request of a lower level is swapped out for a waiting one of a better level.  Output lengths need
not be known, and short answers are not held up by long ones.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Annotated

import msgspec

from stepwell.core.plan import StepPlan
from stepwell.core.protocols import PolicyEvent, Promises, RequestView, SchedulerView
from stepwell.core.types import FOREVER
from stepwell.policies.levels import Levels, Place
from stepwell.policies.toolkit import seconds
from stepwell.policies.victims import PreemptChoice

REMEMBERED = 4096
"""Lengths of prompts whose levels are not computed anew."""


class Mlfq:
    """Levels by prompt length and service received; lower levels give way, and the oldest request is promoted."""

    name = "mlfq"
    promises = Promises(work_conserving=True, bounded_wait=True)

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """Levels, how lower ones give way, and when starvation is ended."""

        quantum: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 32
        """Output tokens (or a prompt worth as many) that the best level serves."""
        levels: Annotated[int, msgspec.Meta(ge=1, le=40)] = 6
        output_cost: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 16
        """Prompt tokens that take as long as one output token."""
        preempt: PreemptChoice = "auto"
        """How a lower level gives way."""
        aging_s: Annotated[float, msgspec.Meta(ge=0, le=1_000_000_000)] = 30.0
        """The oldest request is promoted above all levels at this age."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.levels = Levels(self.place, seconds(options.aging_s))
        self._ends: dict[int, list[int]] = {}

    def ends(self, request: RequestView) -> list[int]:
        """How many output tokens let the request sink out of each level; 0 for the levels that it skips."""
        options = self.options
        first = -(-request.prompt_tokens // options.output_cost)
        known = self._ends.get(first)
        if known is not None:
            return known
        level = 0
        while level < options.levels - 1 and options.quantum << level < first:
            level += 1
        ends, reached = [0] * level, 0
        for each in range(level, options.levels - 1):
            reached += options.quantum << each
            ends.append(max(1, reached - first))
        if len(self._ends) < REMEMBERED:
            self._ends[first] = ends
        return ends

    def place(self, request: RequestView) -> Place:
        """Where it is."""
        ends, generated = self.ends(request), request.generated
        level = bisect_right(ends, generated)
        return 1 + level, ends[level] - generated if level < len(ends) else FOREVER

    def observe(self, event: PolicyEvent) -> None:
        self.levels.observe(event)

    def plan(self, view: SchedulerView) -> StepPlan:
        return self.levels.plan(view, self.options.preempt)
