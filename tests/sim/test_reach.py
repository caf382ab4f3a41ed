"""What a cost model was fitted on, and what of a step lies outside."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.core.config import CostConfig
from stepwell.core.errors import UserError
from stepwell.core.instructions import Launch
from stepwell.core.protocols import BatchShape
from stepwell.core.registry import make_cost_model, whole_options
from stepwell.sim.cost.linear import Linear
from stepwell.sim.cost.reach import COUNTS, Reach, reach_of
from stepwell.sim.mirror import BatchMirror

counts = st.integers(0, 12)
bounds = st.tuples(counts, counts).map(lambda pair: (min(pair), max(pair)))
reaches = st.builds(Reach, **dict.fromkeys(COUNTS, bounds))
shapes = st.builds(BatchShape, **dict.fromkeys(COUNTS, counts))


@given(reaches, shapes)
def test_a_step_is_covered_if_no_count_is_outside(reach: Reach, shape: BatchShape) -> None:
    naive = [
        name
        for name in COUNTS
        if getattr(shape, name) not in range(getattr(reach, name)[0], getattr(reach, name)[1] + 1)
    ]
    assert reach.outside(shape) == naive
    assert reach.covers(shape) == (not naive)


def test_si_5_extrapolation_is_flagged_beyond_what_was_measured() -> None:
    table = {"prefill_tokens": [0, 512], "prefill_requests": [0, 4], "decode_requests": [0, 64], "kv_tokens": [0, 9000]}
    cost = make_cost_model(CostConfig(model="linear", options={"reach": {**table, "error_p90": 0.04, "steps": 900}}))
    reach = reach_of(cost)
    assert reach is not None
    assert reach.error_p90 == 0.04
    for decoding, kv_tokens, outside in (
        (0, 0, []),
        (1, 1, []),
        (64, 9000, []),
        (65, 9001, ["decode_requests", "kv_tokens"]),
    ):
        assert reach.outside(BatchShape(0, decoding, kv_tokens)) == outside
    assert not reach.covers(BatchShape(copied_pages=1))


def test_coefficients_that_nobody_measured_have_no_reach() -> None:
    assert reach_of(Linear()) is None
    assert reach_of(object()) is None
    assert "reach" not in whole_options("cost_models", "linear", {}), "an unset reach is no part of a run's digest"


def test_a_reach_survives_being_written_and_read() -> None:
    given_options = {"reach": {"kv_tokens": [5, 70], "error_p90": 0.1}}
    whole = whole_options("cost_models", "linear", given_options)
    again = msgspec.json.decode(msgspec.json.encode(whole))
    reach = reach_of(make_cost_model(CostConfig(model="linear", options=again)))
    assert reach == Reach(kv_tokens=(5, 70), error_p90=0.1)


@pytest.mark.parametrize(
    ("reach", "told"),
    [({"kv_tokens": [7, 3]}, "begins above its end"), ({"kv_tokens": [-1, 3]}, "kv_tokens"), ({"kv": [0, 3]}, "kv")],
)
def test_an_impossible_reach_is_refused(reach: dict[str, object], told: str) -> None:
    with pytest.raises(UserError, match=told):
        make_cost_model(CostConfig(model="linear", options={"reach": reach}))


def test_a_chunk_attends_to_all_before_it_and_to_itself() -> None:
    """Two chunks of one prompt, counted pair by pair."""
    mirror = BatchMirror(lambda request: 1)
    seen = []
    for start, tokens in ((0, 5), (5, 3)):
        mirror.apply(Launch(1, slices=[(1, start, tokens, False)]))
        seen.append(mirror.shape.prefill_pairs)
    assert seen == [sum(range(1, 6)), sum(range(6, 9))]
