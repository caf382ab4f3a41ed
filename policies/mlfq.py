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
from stepwell.policies.aging import Aging
from stepwell.policies.line import Key
from stepwell.policies.toolkit import pack, seconds
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
        self.queue = Aging(self.level, seconds(options.aging_s))
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

    def level(self, request: RequestView, now_ns: int) -> Key:
        """The level that it is in, from 1; then arrival."""
        return (1 + bisect_right(self.ends(request), request.generated), request.id)

    def observe(self, event: PolicyEvent) -> None:
        self.queue.observe(event)

    def plan(self, view: SchedulerView) -> StepPlan:
        plan = pack(view, self.queue.line, rank=self.queue.rank, mode=self.options.preempt, yields=True)
        if plan.repeat and plan.blocked is not None:
            return msgspec.structs.replace(plan, repeat=self._steps_at_level(view))
        return plan

    def _steps_at_level(self, view: SchedulerView) -> int:
        """Further steps for which nobody who runs sinks, so that nobody new must give way."""
        steps = FOREVER
        for request in view.decoding.values():
            ends, generated = self.ends(request), request.generated
            level = bisect_right(ends, generated)
            if level < len(ends):
                steps = min(steps, ends[level] - generated - 1)
        return steps
