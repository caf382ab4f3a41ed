"""What two plans for one step do otherwise, request by request, and a running account of it."""

from __future__ import annotations

import msgspec

from stepwell.core.plan import StepPlan
from stepwell.core.protocols import RequestView, SchedulerView
from stepwell.core.types import RequestId, StepId

EXAMPLES = 16
"""Requests of which the latest difference is kept."""

Deed = tuple[str, int]
"""(what a plan does with a request, prompt tokens that it computes of it).

``run``; ``hold`` (running, and not in this step); ``wait`` (in line); ``admit`` (a resume too); ``swap`` and
``recompute`` (sent away); ``reject``."""


class Difference(msgspec.Struct, frozen=True):
    """The live policy does one thing with a request and the shadow would do another.

    ``steps`` counts it once a request and step, ``requests`` once a request.
    """

    live: str
    shadow: str
    steps: int
    requests: int


class Example(msgspec.Struct, frozen=True):
    """The latest difference over one request."""

    now_ns: int
    step: StepId
    request: RequestId
    klass: str
    live: str
    shadow: str


class Tally:
    """Adds up differences.  Memory follows the live requests."""

    def __init__(self) -> None:
        self.compared = self.differed = 0
        """Steps."""
        self.chunk_tokens = 0
        """Of prompts that both compute in the same step: how much longer or shorter one's slices are, in all."""
        self.live_tokens = self.shadow_tokens = 0
        """Prompt tokens that each had computed in the steps compared."""
        self._pairs: dict[tuple[str, str], list[int]] = {}
        self._seen: dict[RequestId, dict[tuple[str, str], None]] = {}
        self._latest: dict[RequestId, Example] = {}

    def compare(self, live: StepPlan, shadow: StepPlan, view: SchedulerView) -> None:
        """Two plans for the step that ``view`` shows, before either is applied."""
        self.compared += 1
        ours, theirs = deeds(live, view), deeds(shadow, view)
        if live.decode != shadow.decode:
            for request in view.decoding:
                ours.setdefault(request, default(request, live, view))
        if ours == theirs:
            tokens = sum([tokens for _, tokens in ours.values()])
            self.live_tokens += tokens
            self.shadow_tokens += tokens
            return
        differs = False
        for request in {**ours, **theirs}:
            one = ours.get(request) or default(request, live, view)
            other = theirs.get(request) or default(request, shadow, view)
            self.live_tokens += one[1]
            self.shadow_tokens += other[1]
            if one == other:
                continue
            differs = True
            if one[0] == other[0]:
                self.chunk_tokens += abs(one[1] - other[1])
            else:
                self._note(request, (one[0], other[0]), view)
        self.differed += differs

    def _note(self, id: RequestId, pair: tuple[str, str], view: SchedulerView) -> None:
        counts = self._pairs.setdefault(pair, [0, 0])
        counts[0] += 1
        seen = self._seen.setdefault(id, {})
        if pair not in seen:
            seen[pair] = None
            counts[1] += 1
        self._latest.pop(id, None)
        request = _find(id, view)
        klass = request.klass if request is not None else ""
        self._latest[id] = Example(view.now_ns, view.step, id, klass, *pair)
        if len(self._latest) > EXAMPLES:
            del self._latest[next(iter(self._latest))]

    def forget(self, request: RequestId) -> None:
        """It has ended; its examples stay as long as they are among the latest."""
        self._seen.pop(request, None)

    def differences(self) -> tuple[Difference, ...]:
        """The most frequent first."""
        rows = [Difference(*pair, *counts) for pair, counts in self._pairs.items()]
        return tuple(sorted(rows, key=lambda each: (-each.steps, each.live, each.shadow)))

    def examples(self) -> tuple[Example, ...]:
        """The latest first."""
        return tuple(reversed(self._latest.values()))


def deeds(plan: StepPlan, view: SchedulerView) -> dict[RequestId, Deed]:
    """What ``plan`` says of each request that it names."""
    found: dict[RequestId, Deed] = {}
    for id, _ in plan.reject:
        found[id] = ("reject", 0)
    for item in plan.preempt:
        victim = _find(item.request, view)
        found[item.request] = (item.mode if victim is None or victim.computed else "recompute", 0)
    for id in plan.hold:
        found[id] = ("hold", 0)
    for id in plan.resume:
        found[id] = ("admit", 0)
    for id, tokens in plan.admit:
        found[id] = ("admit", tokens)
    for id, tokens in plan.slices:
        found[id] = ("run", tokens)
    return found


def default(id: RequestId, plan: StepPlan, view: SchedulerView) -> Deed:
    """What becomes of a request that a plan does not name."""
    if id in view.decoding:
        return ("run", 0) if plan.decode else ("hold", 0)
    return ("hold", 0) if id in view.loose else ("wait", 0)


def _find(id: RequestId, view: SchedulerView) -> RequestView | None:
    for table in (view.decoding, view.loose, view.waiting, view.swapped):
        if id in table:
            return table[id]
    return None
