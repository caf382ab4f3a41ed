"""The search for the highest rate, on curves whose knee is known; and the workload that saturates a device."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepwell.sim.compare.knee import DOWN, SLO, UP, find_knee
from stepwell.sim.workload.request import TraceRequest, Workload
from stepwell.sim.workload.transform import all_at_once

RATES = st.lists(st.floats(0.01, 500), max_size=6)


@given(st.floats(1e-3, 1e3), st.floats(0.1, 100), st.sampled_from([0.01, 0.05, 0.3]), RATES)
def test_the_rate_holds_and_one_a_little_above_does_not(
    knee: float, start: float, tolerance: float, known: list[float]
) -> None:
    """``known`` rates have been tried before: they are not tried again, and change nothing else."""

    def attainment(rate: float) -> float:
        return 1.0 if rate <= knee else 0.5

    told = find_knee(3, SLO(0.9, tolerance, start), [(rate, attainment(rate)) for rate in known], attainment)
    held = [0.0, *(rate for rate, attained in told.tried if attained >= 0.9), *(each for each in known if each <= knee)]
    missed = [*(rate for rate, attained in told.tried if attained < 0.9), *(each for each in known if each > knee)]
    assert told.seed == 3
    assert told.rate_per_s == max(held)
    if told.bound == "found":
        assert min(missed) * (1 - tolerance) <= told.rate_per_s * (1 + 1e-4) < min(missed) * (1 + 1e-4)
    elif told.bound == "above":
        assert not missed
        assert told.rate_per_s * 2 > UP * start * (1 - 1e-5)
    else:
        assert told.rate_per_s == 0
        assert min(missed) < 2 * DOWN * start * (1 + 1e-4)
    assert len(told.tried) <= 30
    assert not {rate for rate, _ in told.tried} & set(known)


def test_everything_arrives_at_once_and_what_follows_follows_at_once() -> None:
    requests = [
        TraceRequest(5, 10, 2),
        TraceRequest(9, 20, 2, cancel_ns=30),
        TraceRequest(9, 30, 2, after=(1,), think_ns=1000),
    ]
    made = all_at_once(Workload("w", requests))
    assert [each.prompt_tokens for each in made.requests] == [10, 20, 30]
    assert [each.arrival_ns for each in made.requests] == [0, 0, 0]
    assert [each.cancel_ns for each in made.requests] == [0, 21, 0]
    assert (made.requests[2].after, made.requests[2].think_ns) == ((1,), 0)
