"""A policy for tests: first come, first served, but in a full house far more give way than must."""

from __future__ import annotations

from typing import Annotated

import msgspec

from stepwell.core.plan import Preemption, StepPlan
from stepwell.core.protocols import PolicyEvent, Promises, RequestView, SchedulerView
from stepwell.core.types import SWAPPING_IN
from stepwell.policies.toolkit import OrderedLine, by_arrival, pack, preempt_mode


class Restless:
    """Whenever two pages of three are taken, each running request but the first is sent away by chance, whether it
    decodes or still prefills: half of them by swap, as far as the host tier has room, the others by recompute."""

    name = "restless"
    promises = Promises()

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """How restless."""

        percent: Annotated[float, msgspec.Meta(ge=0, le=100)] = 15.0
        """The chance of each."""

    def __init__(self, options: Options) -> None:
        self.share = options.percent / 100
        self.line = OrderedLine(by_arrival)

    def observe(self, event: PolicyEvent) -> None:
        self.line.observe(event)

    def plan(self, view: SchedulerView) -> StepPlan:
        full = 3 * view.free_pages < view.total_pages and view.growth() <= view.free_pages
        sent = self._sent(view) if full else []
        if sent:
            return StepPlan(preempt=sent)
        plan = pack(view, self.line, mode="swap")
        return msgspec.structs.replace(plan, repeat=0)

    def _sent(self, view: SchedulerView) -> list[Preemption]:
        """All but the first of those who run, by chance."""
        running = [*view.decoding.values(), *view.loose.values()]
        host_pages = view.free_host_pages
        sent: list[Preemption] = []
        for request in running[1:]:
            draw = view.random(request)
            if draw >= self.share or not _may_go(request):
                continue
            mode = preempt_mode(view, request, "swap" if draw < self.share / 2 else "recompute", host_pages)
            if mode == "swap":
                host_pages -= -(-request.computed // view.page_size)
            sent.append(Preemption(request.id, mode, "restless"))
        return sent


def _may_go(request: RequestView) -> bool:
    return not request.protected and request.state is not SWAPPING_IN
