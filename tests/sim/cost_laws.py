"""What every cost model must hold to, whatever it predicts."""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from stepwell.core.protocols import BatchShape, CostModel
from stepwell.core.types import FOREVER

FIELDS = BatchShape.__struct_fields__

counts = st.one_of(st.integers(0, 9), st.integers(0, 5_000), st.integers(0, 10**8))
shapes = st.builds(BatchShape, **dict.fromkeys(FIELDS, counts))


def by_steps(model: CostModel, shape: BatchShape, start_ns: int, steps: int, until_ns: int) -> list[int]:
    """The definition of ``run_ns``, word for word."""
    ends: list[int] = []
    now_ns = start_ns
    for index in range(steps):
        kv_tokens = shape.kv_tokens + index * shape.decode_requests
        now_ns += model.step_ns(msgspec.structs.replace(shape, kv_tokens=kv_tokens))
        ends.append(now_ns)
        if now_ns >= until_ns:
            break
    return ends


def never_less(model: CostModel, shape: BatchShape, name: str, more: int) -> None:
    """An integer above 0, and no smaller with more of one count."""
    larger = msgspec.structs.replace(shape, **{name: getattr(shape, name) + more})
    least, most = model.step_ns(shape), model.step_ns(larger)
    assert type(least) is int
    assert 0 < least <= most, (shape, name, more)


def runs_are_steps(model: CostModel, shape: BatchShape, start_ns: int, steps: int, ahead_ns: int) -> None:
    """To the nanosecond, wherever it stops."""
    before = msgspec.structs.replace(shape)
    until_ns = start_ns + ahead_ns
    assert model.run_ns(shape, start_ns, steps, until_ns) == by_steps(model, shape, start_ns, steps, until_ns)
    assert model.run_ns(shape, start_ns, steps, FOREVER) == by_steps(model, shape, start_ns, steps, FOREVER)
    assert shape == before, "the shape was changed"
