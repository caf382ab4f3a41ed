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
from stepwell.policies.deadlines import Gives, mode_of
from stepwell.policies.line import Key
from stepwell.policies.toolkit import Aging, pack, seconds


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
        self.queue = Aging(self.level, seconds(options.aging_s))
        self.ends = [options.quantum * ((2 << level) - 1) for level in range(options.levels - 1)]
        """Service at which a request sinks out of each level."""
        self._given: dict[str, int] = {}
        """To the ended requests of each program; the one that ended last is the last."""
        self._joined: dict[RequestId, int] = {}
        """What the program of a live request had been given when that came."""

    def service(self, request: RequestView) -> int:
        """What its program had been given when it came, and what it has been given itself."""
        return self._joined[request.id] + self._own(request)

    def _own(self, request: RequestView) -> int:
        """Its prompt counts from the first token on."""
        made = request.generated
        return request.prompt_tokens + made * self.options.output_cost if made > 0 else 0

    def level(self, request: RequestView, now_ns: int) -> Key:
        """The level that it is in, from 1; then arrival."""
        return (1 + bisect_right(self.ends, self.service(request)), request.id)

    def observe(self, event: PolicyEvent) -> None:
        request = event.request
        if event.kind == "arrived":
            self._joined[request.id] = self._given.get(request.program, 0)
        self.queue.observe(event)
        if event.kind == "finished":
            del self._joined[request.id]
            if request.program:
                self._given[request.program] = self._given.pop(request.program, 0) + self._own(request)
                if len(self._given) > self.options.programs:
                    del self._given[next(iter(self._given))]

    def plan(self, view: SchedulerView) -> StepPlan:
        gives = self.options.preempt
        plan = pack(view, self.queue.line, rank=self.queue.rank, mode=mode_of(gives), yields=gives != "never")
        if plan.repeat and plan.blocked is not None and gives != "never":
            return msgspec.structs.replace(plan, repeat=self._steps_at_level(view))
        return plan

    def _steps_at_level(self, view: SchedulerView) -> int:
        """Further steps for which nobody who runs sinks, so that nobody new must give way."""
        steps = FOREVER
        for request in view.decoding.values():
            service = self.service(request)
            level = bisect_right(self.ends, service)
            if level < len(self.ends):
                steps = min(steps, -(-(self.ends[level] - service) // self.options.output_cost) - 1)
        return steps

    def dump(self) -> object:
        return {"given": list(self._given.items()), "joined": list(self._joined.items())}

    def load(self, data: Any) -> None:
        self._given, self._joined = dict(data["given"]), dict(data["joined"])
        self.queue.reorder()
