"""Round robin over users: one request of each user in turn, however many somebody sends.

For: a shared server on which one user's script sends a thousand requests, and everybody else one at a time.  ``vtc`` is
fair by tokens; this is fair by requests, which is easier to explain.  One of weight 2 has
two turns; whoever was away joins the present round.
"""

from __future__ import annotations

from typing import Any

import msgspec

from stepwell.core.plan import StepPlan
from stepwell.core.protocols import PolicyEvent, Promises, SchedulerView
from stepwell.policies.toolkit import TenantLine, pack


class UserRoundRobin:
    """One request of each tenant in turn (by weight); within a tenant in the order of arrival."""

    api_version = 1
    promises = Promises(work_conserving=True, bounded_wait=True)

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """None."""

    def __init__(self, options: Options) -> None:
        self.line = TenantLine(lambda request: 1)

    def observe(self, event: PolicyEvent) -> None:
        self.line.observe(event)

    def plan(self, view: SchedulerView) -> StepPlan:
        return pack(view, self.line)

    def dump(self) -> object:
        return self.line.dump()

    def load(self, data: Any) -> None:
        self.line.load(data)
