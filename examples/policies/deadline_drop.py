"""Deadline drop: a request that cannot get its first token in time any more is rejected at once.

For: clients that have given up by then anyway, as those behind a gateway with a time limit.  Under overload, serving
them late makes the next ones late as well; rejecting them keeps the others in time (Mooncake's early rejection).
The deadline is arrival and the class's ``ttft_ms``, or when the request expires; a class without either has none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec

from stepwell.core.plan import StepPlan
from stepwell.core.protocols import BatchShape, CostModel, PolicyEvent, Promises, RequestView, SchedulerView
from stepwell.core.types import FOREVER
from stepwell.policies.toolkit import OrderedLine, due_ns, pack


class DeadlineDrop:
    """Least slack first; who cannot meet its deadline is rejected."""

    api_version = 1
    promises = Promises()
    parts: ClassVar[Mapping[str, str]] = {"estimate": "cost_models"}

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        estimate: str = "linear"  # estimates step times: a registered name of kind cost_models
        estimate_options: Mapping[str, object] = {}

    def __init__(self, options: Options, estimate: CostModel) -> None:
        self.estimate = estimate
        self.line = OrderedLine(self.latest_start)

    def latest_start(self, request: RequestView, now_ns: int) -> tuple[int, int]:
        """When it must be admitted at the latest; whoever has begun to answer comes last and is never dropped."""
        if request.generated or not (request.ttft_ns or request.expires_ns):
            return (FOREVER, request.id)
        shape = BatchShape(prefill_tokens=request.prompt_tokens, prefill_requests=1)
        return (due_ns(request, FOREVER) - self.estimate.step_ns(shape), request.id)

    def observe(self, event: PolicyEvent) -> None:
        self.line.observe(event)

    def plan(self, view: SchedulerView) -> StepPlan:
        self.line.start(view.now_ns)
        late = []
        while (head := self.line.head()) is not None and self.latest_start(head, 0)[0] < view.now_ns:
            self.line.drop()
            late.append((head.id, "cannot meet its deadline"))
        plan = pack(view, self.line)
        head = self.line.head()
        wake_ns = self.latest_start(head, 0)[0] + 1 if head is not None else 0
        return msgspec.structs.replace(plan, reject=late, repeat=0 if late else plan.repeat, wake_ns=wake_ns)
