"""Cache affinity: whoever finds the most of its prompt in the KV cache comes first, for a bounded time.

For: system prompts and conversations that share long beginnings, with an allocator that reuses prefixes.  A waiting
request whose prefix is in memory is admitted before that is evicted, so that more is reused and less computed.  Nobody
is passed over longer than ``patience_s``: whoever has waited so long comes first, in the order of arrival.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from stepwell.core.plan import StepPlan
from stepwell.core.protocols import PolicyEvent, Promises, SchedulerView
from stepwell.policies.toolkit import ListedLine, first_in_line, pack, seconds


class CacheAffinity:
    """The longest cached prefix first among the first in line; nobody is passed over for long."""

    api_version = 1
    promises = Promises(work_conserving=True, bounded_wait=True)

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        window: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 32  # so many in line are compared
        patience_s: Annotated[float, msgspec.Meta(ge=0, le=1_000_000)] = 5.0  # nobody is passed over for longer

    def __init__(self, options: Options) -> None:
        self.window = options.window
        self.patience_ns = seconds(options.patience_s)

    def observe(self, event: PolicyEvent) -> None: ...

    def plan(self, view: SchedulerView) -> StepPlan:
        ranked = []
        for request in first_in_line(view, self.window):
            urgent = request.computed > 0 or view.now_ns - request.arrival_ns >= self.patience_ns
            ranked.append((0 if urgent else 1, 0 if urgent else -view.cached_tokens(request), request.id, request))
        ranked.sort()
        plan = pack(view, ListedLine([entry[-1] for entry in ranked]))
        # what is cached changes from step to step, so that no blocked plan holds for longer than one
        return msgspec.structs.replace(plan, repeat=0) if plan.blocked is not None else plan
