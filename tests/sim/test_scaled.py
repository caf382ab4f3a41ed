"""A cost model at another speed: the other's steps by a factor, and all that is known of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.core.config import Config, CostConfig
from stepwell.core.errors import UserError
from stepwell.core.protocols import BatchShape
from stepwell.core.registry import make_cost_model
from stepwell.sim.cost.linear import Linear
from stepwell.sim.cost.room import room_of
from stepwell.sim.cost.scaled import Scaled
from stepwell.sim.fidelity.observed import METRICS
from stepwell.sim.fidelity.predict import at_pace, predict
from stepwell.sim.workload.generate import common_workload
from stepwell.sim.workload.transform import scale_rate

shapes = st.builds(
    BatchShape,
    prefill_tokens=st.integers(0, 5000),
    decode_requests=st.integers(0, 300),
    kv_tokens=st.integers(0, 500_000),
    swap_pages=st.integers(0, 99),
)


def scaled(permille: int, model: str = "linear", options: Mapping[str, Any] | None = None) -> Scaled:
    return Scaled(Scaled.Options(model=model, options=options or {}, permille=permille))


@given(shapes, st.integers(1, 5000))
def test_a_step_takes_so_much_of_the_others(shape: BatchShape, permille: int) -> None:
    ours, theirs = scaled(permille).step_ns(shape), Linear().step_ns(shape)
    assert 0 <= 1000 * ours - theirs * permille < 1000
    assert ours >= 1


def test_what_was_measured_and_what_fits_are_the_others() -> None:
    reach = {"prefill_tokens": [0, 9], "decode_requests": [0, 9], "kv_tokens": [0, 9]}
    with_reach = scaled(900, options={"reach": reach})
    assert with_reach.reach is not None
    assert with_reach.reach == with_reach.scaled.reach  # type: ignore[attr-defined]
    assert scaled(900).reach is None
    device = {"device": "H100", "model": "llama-3-8b"}
    room = room_of(make_cost_model(CostConfig(model="roofline", options=device)))
    assert room_of(scaled(900, "roofline", device)) == room is not None
    assert scaled(900).room is None


@pytest.mark.parametrize("wrong", [{"permille": 0}, {"model": "linaer"}, {"options": {"bas_ns": 1}}])
def test_what_cannot_be_scaled_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        make_cost_model(CostConfig(model="scaled", options=wrong))


def test_a_run_at_twice_the_pace_on_half_the_arrivals_is_the_same_run_twice_as_long() -> None:
    """Nothing but step times and arrivals tells the simulator how fast anything is."""
    options = {"base_ns": 4_000_000, "prefill_token_ns": 20_000, "decode_request_ns": 10_000, "kv_token_ps": 40_000}
    cost, requests = CostConfig(model="linear", options=options), common_workload(count=200, load=0.9)
    slow, _ = predict(Config(), at_pace(cost, 2.0), scale_rate(requests, 0.5))
    fast, _ = predict(Config(), cost, requests)
    assert [each.same for each in slow.decisions] == [each.same for each in fast.decisions]
    for metric in METRICS:
        factor = {"output_tokens_per_s": 0.5, "mean_queue": 1.0}.get(metric, 2.0)
        assert slow.metrics[metric] == pytest.approx(factor * fast.metrics[metric], rel=1e-6)
