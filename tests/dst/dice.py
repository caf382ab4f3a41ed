"""``Chaos`` as a plugin: what it draws depends on seed, step and time, so that a replay may begin anywhere."""

from __future__ import annotations

import msgspec

from stepwell.core.plan import StepPlan
from stepwell.core.protocols import PolicyEvent, Promises, SchedulerView
from stepwell.tests.stateful.chaos import Chaos

DICE = "stepwell.tests.dst.dice:Dice"


class Dice:
    """See the module."""

    name = "dice"
    promises = Promises()

    class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
        """Of its draws; whether it rejects requests now and then."""

        seed: int = 0
        rejects: bool = False

    def __init__(self, options: Options) -> None:
        self.seed = options.seed
        self.chaos = Chaos(0, rejects=options.rejects)

    def observe(self, event: PolicyEvent) -> None:
        self.chaos.observe(event)

    def plan(self, view: SchedulerView) -> StepPlan:
        self.chaos.random.seed(f"{self.seed}-{view.step}-{view.now_ns}-{self.chaos.asked}")
        return self.chaos.plan(view)

    def dump(self) -> object:
        """For which step it was asked last: the second time it plans so that a step comes of it."""
        return self.chaos.asked

    def load(self, data: object) -> None:
        assert isinstance(data, int)
        self.chaos.asked = data
