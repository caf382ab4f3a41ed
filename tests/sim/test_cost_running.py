"""The one loop over ``step_ns`` gives what ``run_ns`` is defined as, and leaves its shape alone."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from stepwell.core.protocols import BatchShape
from stepwell.core.testing_cost import by_steps
from stepwell.sim.cost.linear import Linear
from stepwell.sim.cost.linear_options import LinearOptions
from stepwell.sim.cost.running import run_by_steps
from stepwell.tests.sim.test_cost_linear import options, shapes


@given(options, shapes, st.integers(0, 10**15), st.integers(0, 80), st.integers(-10, 10**10))
def test_a_run_by_steps_equals_its_definition(
    chosen: LinearOptions, shape: BatchShape, start_ns: int, steps: int, ahead_ns: int
) -> None:
    model, before, until_ns = Linear(chosen), msgspec.structs.replace(shape), start_ns + ahead_ns
    found = run_by_steps(model.step_ns, shape, start_ns, steps, until_ns)
    assert found == by_steps(model, shape, start_ns, steps, until_ns)
    assert found == model.run_ns(shape, start_ns, steps, until_ns)
    assert shape == before


def test_every_count_of_a_shape_is_passed_on() -> None:
    seen: list[BatchShape] = []

    def step_ns(shape: BatchShape) -> int:
        seen.append(msgspec.structs.replace(shape))
        return 1

    shape = BatchShape(**{name: 3 + place for place, name in enumerate(BatchShape.__struct_fields__)})
    run_by_steps(step_ns, shape, 0, 2, 9)
    assert seen == [shape, msgspec.structs.replace(shape, kv_tokens=shape.kv_tokens + shape.decode_requests)]
