"""``RunMetrics``, which adds a number a step, against a collector that walks every request and token of every step."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from stepwell.core.events import Event, RunDone, StepDone, StepFailed, Submitted
from stepwell.core.instructions import Finished, Instruction, Launch, Preempted, Rejected
from stepwell.core.registry import names
from stepwell.sim.cost.linear import Linear
from stepwell.sim.loop import Simulator
from stepwell.sim.metrics import RunMetrics
from stepwell.tests.core.shells import Case
from stepwell.tests.core.test_two_shells import ALLOCATORS, LONG, QUICK, cases

POLICIES = sorted(names("policies"))


@dataclass
class Life:
    klass: str
    arrival_ns: int
    token_ns: list[int] = field(default_factory=list)
    pages: set[int] = field(default_factory=set)
    reached: int = 0
    """Positions launched so far, in its present stay on the device or before."""
    lost: int = 0
    """Positions that a recompute threw away."""
    ended: bool = False


class Naive:
    """Takes single steps only.  Slices count as computed when launched, decodes when done, as long as anybody waits."""

    def __init__(self) -> None:
        self.lives: dict[int, Life] = {}
        self.group: dict[int, int] = {}
        self.at: dict[int, int] = {}
        self.flight: deque[tuple[list[int], list[int]]] = deque()
        self.computed = self.recomputed = self.steps = self.failed = self.busy_ns = 0
        self.page_ns = self.before_ns = 0

    def __call__(self, now_ns: int, events: Sequence[Event], out: Sequence[Instruction]) -> None:
        self.page_ns += (now_ns - self.before_ns) * len(set[int]().union(*(life.pages for life in self.lives.values())))
        self.before_ns = now_ns
        for it in events:
            assert not isinstance(it, RunDone)
            if isinstance(it, StepDone):
                self.done(now_ns, it)
            elif isinstance(it, StepFailed):
                self.failed += len(self.flight)
                self.flight.clear()
                self.group.clear()
            elif isinstance(it, Submitted):
                self.lives[it.request] = Life(it.klass, now_ns)
        for instruction in out:
            self.follow(instruction)

    def done(self, now_ns: int, it: StepDone) -> None:
        self.busy_ns += it.elapsed_ns
        decoded, sampled = self.flight.popleft()
        for id in decoded:
            self.computed += not self.lives[id].ended
        for id in decoded + sampled:
            if not self.lives[id].ended:
                self.lives[id].token_ns.append(now_ns)

    def follow(self, it: Instruction) -> None:
        if isinstance(it, Launch):
            self.launch(it)
        elif isinstance(it, Preempted):
            life = self.lives[it.request]
            assert it.pages == self.alone(life)
            life.pages.clear()
            if it.mode == "recompute":
                life.lost = max(life.lost, it.tokens)
                life.reached = 0
        elif isinstance(it, Finished | Rejected):
            life = self.lives[it.request]
            if isinstance(it, Finished):
                assert (it.tokens, it.pages) == (len(life.token_ns), self.alone(life))
            life.pages.clear()
            life.ended = True

    def alone(self, life: Life) -> int:
        others = (each.pages for each in self.lives.values() if each is not life)
        return len(life.pages.difference(*others))

    def launch(self, it: Launch) -> None:
        self.steps += 1
        for id in it.left:
            self.group.pop(id, None)
        for id in it.joined:
            self.group[id] = 0
        for id, page in zip(it.growth[::2], it.growth[1::2], strict=True):
            self.lives[id].pages.add(page)
        for id, table in it.tables:
            self.lives[id].pages.update(table)
        decoded = list(self.group) if it.decode else []
        for id in decoded:
            self.lives[id].reached += 1
        for id, start, tokens, _ in it.slices:
            life = self.lives[id]
            self.computed += tokens
            self.recomputed += sum(1 for place in range(start, start + tokens) if place < life.lost)
            life.reached = start + tokens
        self.flight.append((decoded, [id for id, _, _, samples in it.slices if samples]))

    # ---- what both must agree on

    def summary(self) -> dict[str, Any]:
        itl: dict[str, Counter[int]] = {life.klass: Counter() for life in self.lives.values()}
        for life in self.lives.values():
            times = life.token_ns
            itl[life.klass].update(later - sooner for sooner, later in pairwise(times))
        return {
            "ttft": {id: it.token_ns[0] - it.arrival_ns for id, it in self.lives.items() if it.token_ns},
            "e2e": {id: it.token_ns[-1] - it.arrival_ns for id, it in self.lives.items() if it.token_ns},
            "tpot": {
                id: (it.token_ns[-1] - it.token_ns[0], len(it.token_ns) - 1)
                for id, it in self.lives.items()
                if len(it.token_ns) > 1
            },
            "itl": itl,
            "computed": (self.computed, self.recomputed),
            "steps": (self.steps, self.failed, self.busy_ns),
            "kv_page_ns": self.page_ns,
        }


def summary(metrics: RunMetrics) -> dict[str, Any]:
    itl = {}
    for klass, gaps in metrics.gaps.items():
        itl[klass] = counter = Counter[int]()
        for gap_ns, count in zip(gaps.gaps_ns, gaps.counts, strict=True):
            counter[gap_ns] += count
    began = {id: it for id, it in metrics.requests.items() if it.first_token_ns}
    return {
        "ttft": {id: it.first_token_ns - it.arrival_ns for id, it in began.items()},
        "e2e": {id: it.last_token_ns - it.arrival_ns for id, it in began.items()},
        "tpot": {
            id: (it.last_token_ns - it.first_token_ns, it.tokens - 1) for id, it in began.items() if it.tokens > 1
        },
        "itl": itl,
        "computed": (metrics.computed_tokens, metrics.recomputed_tokens),
        "steps": (metrics.steps, metrics.failed_steps, metrics.busy_ns),
        "kv_page_ns": metrics.kv_page_ns,
    }


def run(case: Case, observers: Sequence[Any], *, jumps: bool) -> None:
    Simulator(
        case.build(),
        Linear(case.cost),
        case.requests,
        observers=observers,
        max_tokens=case.max_tokens,
        faults=case.fault_script(),
        jumps=jumps,
    ).run()


def compare(case: Case) -> None:
    naive, stepping, jumping = Naive(), RunMetrics(), RunMetrics()
    run(case, [naive, stepping.observe], jumps=False)
    run(case, [jumping.observe], jumps=True)
    expected = naive.summary()
    assert summary(stepping) == expected
    assert summary(jumping) == expected
    assert stepping.requests == jumping.requests
    event(f"recomputes: {stepping.recomputes > 0}")
    event(f"swaps: {stepping.swaps > 0}")
    event(f"fails: {stepping.failed_steps > 0}")
    event(f"depth: {case.scheduler['depth']}")


@pytest.mark.parametrize("policy", POLICIES)
def test_metrics_equal_the_naive_collector(policy: str) -> None:
    @QUICK
    @given(st.data(), st.sampled_from(ALLOCATORS))
    def test(data: st.DataObject, allocator: str) -> None:
        compare(data.draw(cases(policy, allocator)))

    test()


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_metrics_equal_the_naive_collector_at_length(policy: str) -> None:
    @LONG
    @given(st.data(), st.sampled_from(ALLOCATORS))
    def test(data: st.DataObject, allocator: str) -> None:
        compare(data.draw(cases(policy, allocator)))

    test()
