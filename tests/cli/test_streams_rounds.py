"""The steps of a round are those in which exactly its requests decode, whoever waits in line beside them."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.cli.streams_rounds import RUNNER, ratios, round_line, rounds_of
from stepwell.core.errors import UserError
from stepwell.core.protocols import BatchShape
from stepwell.sim.cost.linear import Linear
from stepwell.sim.step_reader import MeasuredStep
from stepwell.sim.workload.request import TraceRequest
from stepwell.tests.core.shells import ODD, Case, simulated

LATER_NS = 1_000_000
"""A round is long over by then."""


def journal(folder: Path, requests: list[TraceRequest], few: int) -> Path:
    """Of a house that runs ``few`` at once, those with a priority before all others."""
    case = Case(
        tuple(sorted(requests, key=lambda each: each.arrival_ns)),
        "priority",
        scheduler={"running_limit": few, "token_budget": 64},
        memory={"page_size": 4, "pages": 64, "host_pages": 0},
        options={"aging_s": 1e9},
    )
    folder.mkdir(exist_ok=True)
    simulated(case).write(folder / "one.jsonl")
    return folder


def runners(at_ns: int, few: int, prompt: int, tokens: int) -> list[TraceRequest]:
    return [TraceRequest(at_ns, prompt, tokens, priority=RUNNER) for _ in range(few)]


@settings(deadline=None)
@given(
    few=st.integers(1, 4),
    prompt=st.integers(1, 12),
    tokens=st.integers(2, 12),
    crowd=st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 8), st.integers(1, 30)), max_size=12),
)
def test_every_round_has_the_same_steps(
    tmp_path_factory: pytest.TempPathFactory, few: int, prompt: int, tokens: int, crowd: list[tuple[int, int, int]]
) -> None:
    """The crowd comes around the second round, and may be running when it begins; the other two are alone."""
    requests = [each for place in range(3) for each in runners(1 + place * LATER_NS, few, prompt, tokens)]
    requests += [TraceRequest(LATER_NS - 1500 + at, size, said) for at, size, said in crowd]
    first, beside, last = rounds_of(journal(tmp_path_factory.mktemp("a"), requests, few), few)
    kv = [few * (prompt + done) for done in range(tokens - 1)]
    assert [each.shape.kv_tokens for each in first] == [each.shape.kv_tokens for each in last] == kv
    assert 1 <= len(beside) < tokens
    cost = Linear(ODD)
    for step in (*first, *beside, *last):
        assert (step.shape.decode_requests, step.shape.prefill_tokens) == (few, 0)
        assert step.period_ns == step.elapsed_ns == cost.step_ns(step.shape)


def step(period_ms: int, device_ms: int) -> MeasuredStep:
    return MeasuredStep(BatchShape(decode_requests=2, kv_tokens=7), period_ms * 1_000_000, device_ms * 1_000_000)


def test_what_a_step_took_is_the_devices_and_the_rest() -> None:
    line = round_line([step(10, 8), step(12, 9), step(30, 9)])
    assert (line["steps"], line["kv_tokens_p50"]) == (3, 7)
    assert (line["step_p50_ms"], line["device_p50_ms"], line["gap_p50_ms"]) == (12.0, 9.0, 3.0)
    assert (line["step_p99_ms"], line["device_p99_ms"], line["gap_p99_ms"]) == (30.0, 9.0, 21.0)
    assert ratios([step(10, 8)], [step(12, 8)]) == {
        "step_p50_ratio": 1.2,
        "step_p99_ratio": 1.2,
        "device_p50_ratio": 1.0,
        "gap_p50_ratio": 2.0,
    }


def test_a_round_without_steps_has_no_times() -> None:
    assert round_line([])["step_p50_ms"] is None
    assert ratios([], [step(1, 1)])["step_p50_ratio"] is None


def test_only_a_whole_journal_will_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no journal"):
        rounds_of(tmp_path, 1)
