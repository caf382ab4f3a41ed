"""A second policy beside the live one: shown the same events, asked about the same steps, and obeyed in nothing.

``Beside`` stands in the live policy's place and hands its plans on untouched, so that the scheduler knows nothing of
this and a journal is the same with a shadow and without.  The shadow stays when the live policy is changed.  It decides
from the state that the live policy has led to, so this tells where the two part, not what would have come of it.

In a step that repeats nobody is asked.  With a clock, the shadow is not asked either while it has had more than its
share of the time; observing cannot be left out, and if that alone is too much, or one plan takes far too long, it is
switched off.  So it is if it raises or breaks a rule: the live policy never notices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from stepwell.core.errors import PLUGIN_RAISES, describe
from stepwell.core.plan import BrokenRuleError, StepPlan
from stepwell.core.plan_check import check_plan
from stepwell.core.protocols import PolicyEvent, Promises, Remembering, SchedulerPolicy, SchedulerView
from stepwell.core.scheduler import Scheduler
from stepwell.core.shadow_tally import Difference, Example, Tally
from stepwell.core.state import State
from stepwell.core.types import NS_PER_MS, NS_PER_S, RequestId, StepId

BURST_NS = 50 * NS_PER_MS
"""Time that is saved up for it at most."""

DEBT_NS = NS_PER_S
"""So far over its share, it is switched off: a pause of the whole process is less."""

_PLACES = {"arrived": "line", "preempted": "line", "admitted": "device", "resumed": "device", "swapped": "host"}


class ShadowReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the shadow would have decided otherwise, in the steps in which it was asked (``compared``).

    ``skipped`` steps were planned without asking it, for want of time; ``repeated`` ones were planned by nobody.
    ``chunk_tokens``, ``live_tokens``, ``shadow_tokens``: see ``Tally``.  ``spent_ns`` is what observing and planning
    took, 0 where that is not measured.  ``off``: why it was switched off; empty while it is not.
    """

    policy: str
    options: dict[str, object]
    compared: int
    differed: int
    differed_share: float | None
    skipped: int
    repeated: int
    chunk_tokens: int
    live_tokens: int
    shadow_tokens: int
    differences: tuple[Difference, ...]
    examples: tuple[Example, ...]
    observing_ns: int
    planning_ns: int
    longest_plan_ns: int
    off: str


class Shadow:
    """One, as long as its scheduler lives.

    ``clock`` tells ns, for bounding its time to ``share``; without one it is always asked.  ``tell`` is called with the
    reason when it is switched off.  ``state`` is the scheduler's, to hold plans to the rules.
    """

    def __init__(
        self,
        policy: SchedulerPolicy,
        name: str,
        options: dict[str, object],
        *,
        share: float = 1.0,
        clock: Callable[[], int] | None = None,
        tell: Callable[[str], None] = lambda why: None,
    ) -> None:
        self.policy: SchedulerPolicy | None = policy
        """None once it is switched off."""
        self.name = name
        self.options = options
        self.off = ""
        self.state: State | None = None
        self.tally = Tally()
        self.skipped = self.repeated = 0
        self.observing_ns = self.planning_ns = self.longest_plan_ns = 0
        self._share = share
        self._clock = clock or (lambda: 0)
        self._tell = tell
        self._credit_ns = BURST_NS
        self._paid_ns = self._clock()
        self._places: dict[RequestId, str] = {}
        self._planned: StepId = 0

    def observe(self, event: PolicyEvent) -> None:
        """Show it an event, unless that only introduces a request to a live policy that has just taken over."""
        if self.policy is None or self._introduces(event):
            return
        start_ns = self._clock()
        try:
            self.policy.observe(event)
        except PLUGIN_RAISES as error:
            self._switch_off(f"observe raised {describe(error)}")
        took_ns = self._clock() - start_ns
        self.observing_ns += took_ns
        self._spend(took_ns)

    def _introduces(self, event: PolicyEvent) -> bool:
        """An event that really happens changes the place that a request is in."""
        id, kind = event.request.id, event.kind
        if kind == "finished":
            self._places.pop(id, None)
            self.tally.forget(id)
            return False
        place = _PLACES.get(kind)
        if place is None:
            return False
        known = self._places.get(id)
        if known == place or (known is not None and kind == "arrived") or (known == "host" and kind == "admitted"):
            return True
        self._places[id] = place
        return False

    def ask(self, live: StepPlan, view: SchedulerView) -> None:
        """What would it have planned instead of ``live``?"""
        self.repeated += self._unplanned(view.step)
        self._planned = view.step
        if self.policy is None or self.state is None:
            return
        start_ns = self._clock()
        self._credit_ns = min(BURST_NS, self._credit_ns + int((start_ns - self._paid_ns) * self._share))
        self._paid_ns = start_ns
        if self._credit_ns <= 0:
            self.skipped += 1
            return
        try:
            plan = self.policy.plan(view)
            check_plan(plan, self.state)
        except BrokenRuleError as broken:
            self._switch_off(f"it broke the rule {broken.rule!r}: {broken.detail}")
            return
        except PLUGIN_RAISES as error:
            self._switch_off(f"plan raised {describe(error)}")
            return
        if _lawful(live, self.state):
            self.tally.compare(live, plan, view)
        took_ns = self._clock() - start_ns
        self.planning_ns += took_ns
        self.longest_plan_ns = max(self.longest_plan_ns, took_ns)
        self._spend(took_ns)

    def _unplanned(self, step: StepId) -> int:
        """Steps before ``step`` that were launched since the last plan."""
        return max(0, step - self._planned - 1) if self._planned else 0

    def _spend(self, took_ns: int) -> None:
        self._credit_ns -= took_ns
        if self._credit_ns < -DEBT_NS:
            self._switch_off(f"it takes more than its share of the time, {self._share:g}, by more than a second")

    def _switch_off(self, why: str) -> None:
        if self.policy is not None:
            self.policy = None
            self.off = why
            self._tell(why)

    def report(self) -> ShadowReport:
        """What came of it so far."""
        tally = self.tally
        repeating = self._unplanned(self.state.next_step) if self.state is not None else 0
        return ShadowReport(
            policy=self.name,
            options=self.options,
            compared=tally.compared,
            differed=tally.differed,
            differed_share=tally.differed / tally.compared if tally.compared else None,
            skipped=self.skipped,
            repeated=self.repeated + repeating,
            chunk_tokens=tally.chunk_tokens,
            live_tokens=tally.live_tokens,
            shadow_tokens=tally.shadow_tokens,
            differences=tally.differences(),
            examples=tally.examples(),
            observing_ns=self.observing_ns,
            planning_ns=self.planning_ns,
            longest_plan_ns=self.longest_plan_ns,
            off=self.off,
        )


def _lawful(plan: StepPlan, state: State) -> bool:
    """Whether the live plan will be applied at all."""
    try:
        check_plan(plan, state)
    except Exception:
        return False  # the scheduler finds that out by itself, and says so
    return True


class Beside:
    """The live policy as the scheduler knows it, and its shadow.  Whatever else is asked, the live one answers."""

    def __init__(self, live: SchedulerPolicy, shadow: Shadow) -> None:
        self.live = live
        self.shadow = shadow
        self.promises: Promises = live.promises

    def observe(self, event: PolicyEvent) -> None:
        try:
            self.live.observe(event)
        finally:
            self.shadow.observe(event)

    def plan(self, view: SchedulerView) -> StepPlan:
        plan = self.live.plan(view)
        self.shadow.ask(plan, view)
        return plan

    def dump(self) -> object:
        """None if the live policy remembers nothing, which is what the scheduler makes of such a policy, too."""
        return self.live.dump() if isinstance(self.live, Remembering) else None

    def load(self, data: object) -> None:
        if isinstance(self.live, Remembering):
            self.live.load(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.live, name)


def shadow_of(scheduler: Scheduler) -> Shadow | None:
    """The one beside the scheduler's policy."""
    policy = scheduler.state.policy
    return policy.shadow if isinstance(policy, Beside) else None
