"""Program-level attained service: a request is ranked by what its whole program has been given so far.

Source: Luo et al., "Autellix: An Efficient Serving Engine for LLM Agents as General Programs", 2025 (PLAS).
Levels have quanta of ``quantum`` × 1, 2, 4, … tokens of service.  A request joins the level that the ended requests of
its program have brought that to, so a new program begins in the best one, and sinks as it is served itself.  A request
without a program is one of its own.  How many calls a program makes and how long they get need not be known.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Annotated, Any

import msgspec

from stepwell.core.plan import StepPlan
from stepwell.core.protocols import PolicyEvent, Promises, RequestView, SchedulerView
from stepwell.core.types import FOREVER, RequestId
from stepwell.policies.deadlines import Gives
from stepwell.policies.levels import Levels, Place
from stepwell.policies.toolkit import seconds


class Plas:
    """Least attained service by program, in levels; the oldest request is promoted above all of them."""

    name = "plas"
    promises = Promises(work_conserving=True, bounded_wait=True)

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """Levels, how a request gives way to a better level, when starvation is ended, and what is remembered."""

        quantum: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 2048
        """Service that the best level gives a program, in prompt tokens."""
        levels: Annotated[int, msgspec.Meta(ge=1, le=40)] = 8
        output_cost: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 16
        """Prompt tokens that are as much service as one output token."""
        preempt: Gives = "auto"
        """How a running request gives way."""
        aging_s: Annotated[float, msgspec.Meta(ge=0, le=1_000_000_000)] = 30.0
        """The oldest request comes first at this age."""
        programs: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 4096
        """Programs remembered; one that no request has ended for the longest time is forgotten, and begins anew."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.levels = Levels(self.place, seconds(options.aging_s))
        self.ends = [options.quantum * ((2 << level) - 1) for level in range(options.levels - 1)]
        """Service at which a request sinks out of each level."""
        self._given: dict[str, int] = {}
        """To the ended requests of each program; the one that ended last is the last."""
        self._joined: dict[RequestId, int] = {}
        """What the program of a live request had been given when that came."""

    def _own(self, request: RequestView) -> int:
        """Its prompt counts from the first token on."""
        made = request.generated
        return request.prompt_tokens + made * self.options.output_cost if made > 0 else 0

    def place(self, request: RequestView) -> Place:
        """By what its program had been given when it came, and what it has been given itself."""
        service = self._joined[request.id] + self._own(request)
        level = bisect_right(self.ends, service)
        if level == len(self.ends):
            return 1 + level, FOREVER
        if request.generated <= 0:
            return 1 + level, 1
        return 1 + level, -(-(self.ends[level] - service) // self.options.output_cost)

    def observe(self, event: PolicyEvent) -> None:
        request = event.request
        if event.kind == "arrived":
            self._joined[request.id] = self._given.get(request.program, 0)
        self.levels.observe(event)
        if event.kind == "finished":
            del self._joined[request.id]
            if request.program:
                self._given[request.program] = self._given.pop(request.program, 0) + self._own(request)
                if len(self._given) > self.options.programs:
                    del self._given[next(iter(self._given))]

    def plan(self, view: SchedulerView) -> StepPlan:
        return self.levels.plan(view, self.options.preempt)

    def dump(self) -> object:
        return {"given": list(self._given.items()), "joined": list(self._joined.items())}

    def load(self, data: Any) -> None:
        self._given, self._joined = dict(data["given"]), dict(data["joined"])
        self.levels.reorder()
