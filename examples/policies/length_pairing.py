"""Length pairing: a long prompt is admitted together with a short one, so that every batch holds about as much.

For: mixed lengths in too small a memory.  In the order of arrival a batch may be all long (few run, and pages run out)
and the next one all short (pages lie idle).  Here the shortest of the first in line comes next while those that run are
longer than these on average, else the longest.  Whoever has waited ``patience_s`` comes first, in order of arrival.
"""

from __future__ import annotations

from collections import deque
from typing import Annotated

import msgspec

from stepwell.core.plan import StepPlan
from stepwell.core.protocols import PolicyEvent, Promises, RequestView, SchedulerView
from stepwell.policies.toolkit import ListedLine, first_in_line, pack, seconds


class LengthPairing:
    """Long and short ones in turn, so that the running ones are as long as the waiting ones on average."""

    api_version = 1
    promises = Promises(work_conserving=True, bounded_wait=True)

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        window: Annotated[int, msgspec.Meta(ge=2, le=4096)] = 16  # so many in line are paired
        patience_s: Annotated[float, msgspec.Meta(ge=0, le=1_000_000)] = 10.0  # nobody is passed over for longer

    def __init__(self, options: Options) -> None:
        self.window = options.window
        self.patience_ns = seconds(options.patience_s)

    def observe(self, event: PolicyEvent) -> None: ...

    def plan(self, view: SchedulerView) -> StepPlan:
        near = sorted(first_in_line(view, self.window), key=lambda each: (each.prompt_tokens, each.id))
        late = [each for each in near if each.computed or view.now_ns - each.arrival_ns >= self.patience_ns]
        order = sorted(late, key=lambda each: each.id)
        rest = deque(each for each in near if each not in order)
        running: list[RequestView] = [*view.decoding.values(), *view.loose.values(), *order]
        length, count = sum(each.prompt_tokens for each in running), len(running)
        mean = sum(each.prompt_tokens for each in near) / max(1, len(near))
        while rest:
            order.append(rest.popleft() if length > mean * count else rest.pop())
            length, count = length + order[-1].prompt_tokens, count + 1
        plan = pack(view, ListedLine(order))
        return msgspec.structs.replace(plan, repeat=0) if plan.blocked is not None else plan
