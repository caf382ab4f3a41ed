"""Jumps change nothing: under every policy and in every memory, whatever the step time, the same journal and numbers.

A cost model may say at once when a whole run of steps ends (a closed form, or a loop of its own), or be asked step by
step; a plan may repeat, or be asked for anew each time.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.core.protocols import BatchShape, CostModel
from stepwell.core.registry import names
from stepwell.sim.cost.linear import Linear
from stepwell.sim.cost.running import run_by_steps
from stepwell.sim.loop import Simulator
from stepwell.sim.metrics import RunMetrics
from stepwell.tests.core.shells import ODD, Case, Recorder, fixed_case
from stepwell.tests.core.test_two_shells import LONG, cases

POLICIES = sorted(names("policies"))
ALLOCATORS = sorted(names("allocators"))
WHOLE = msgspec.structs.replace(ODD, kv_token_ps=1000)
"""A whole number of nanoseconds a KV token: ``Linear`` has a closed form."""


class Curved:
    """A cost model that no sum of terms gives: it grows with the square of the KV read, and by a jump at full waves."""

    def step_ns(self, shape: BatchShape) -> int:
        waves = -(-shape.decode_requests // 3)
        return 11 + 3 * shape.prefill_tokens + 7 * waves + shape.kv_tokens * shape.kv_tokens // 97 + shape.swap_pages

    def run_ns(self, shape: BatchShape, start_ns: int, steps: int, until_ns: int) -> list[int]:
        return run_by_steps(self.step_ns, shape, start_ns, steps, until_ns)


COSTS: dict[str, CostModel] = {"closed": Linear(WHOLE), "rounding": Linear(ODD), "curved": Curved()}


def run(case: Case, cost: CostModel, *, jumps: bool, honour_repeats: bool) -> tuple[bytes, Any]:
    """The journal, and what the metrics say."""
    scheduler = case.build(honour_repeats=honour_repeats)
    recorder, metrics = Recorder(case.config(), scheduler), RunMetrics()
    Simulator(
        scheduler,
        cost,
        case.requests,
        observers=[recorder, metrics.observe],
        max_tokens=case.max_tokens,
        faults=case.fault_script(),
        jumps=jumps,
    ).run()
    gaps = {name: sorted(zip(it.gaps_ns, it.counts, strict=True)) for name, it in metrics.gaps.items()}
    told = dict(metrics.requests), gaps, metrics.steps, metrics.busy_ns, metrics.kv_page_ns, metrics.computed_tokens
    return recorder.run().journal, told


def check(case: Case, cost: CostModel) -> bytes:
    expected = run(case, cost, jumps=False, honour_repeats=False)
    for jumps, honour_repeats in ((True, True), (False, True), (True, False)):
        assert run(case, cost, jumps=jumps, honour_repeats=honour_repeats) == expected
    return expected[0]


@pytest.mark.parametrize("allocator", ALLOCATORS)
@pytest.mark.parametrize("policy", POLICIES)
def test_jumps_change_nothing(policy: str, allocator: str) -> None:
    repeats = 0
    for seed, cost in enumerate(COSTS.values()):
        repeats += b'["repeat"' in check(fixed_case(3 * seed + 3, policy, allocator), cost)
    assert repeats, "some of these runs repeat steps"


@pytest.mark.slow
@pytest.mark.parametrize("allocator", ALLOCATORS)
@pytest.mark.parametrize("policy", POLICIES)
def test_jumps_change_nothing_at_length(policy: str, allocator: str) -> None:
    @LONG
    @given(st.data(), st.sampled_from(sorted(COSTS)))
    def test(data: st.DataObject, name: str) -> None:
        check(data.draw(cases(policy, allocator)), COSTS[name])

    test()
