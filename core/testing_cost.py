"""The conformance suite of cost models: does a step always take time, more of it for more, and a run as its steps?

    from stepwell.core.testing import check_cost_model

    def test_mine():
        check_cost_model(Mine(Mine.Options()))

Generated shapes go far beyond any batch, as a table of measurements has an end and a simulation need not.
"""

from __future__ import annotations

import msgspec
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from stepwell.core.protocols import BatchShape, CostModel
from stepwell.core.testing_play import ConformanceError
from stepwell.core.types import FOREVER

COUNTS = BatchShape.__struct_fields__

counts = st.one_of(st.integers(0, 9), st.integers(0, 5_000), st.integers(0, 10**8))
shapes = st.builds(BatchShape, **dict.fromkeys(COUNTS, counts))


def check_cost_model(model: CostModel, *, examples: int = 200) -> None:
    """Raises ``ConformanceError`` with the smallest step found that breaks the contract of ``CostModel``."""
    chosen = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )

    @chosen
    @given(shapes, st.sampled_from(COUNTS), counts)
    def grows(shape: BatchShape, name: str, more: int) -> None:
        never_less(model, shape, name, more)

    @chosen
    @given(shapes, st.integers(0, 10**15), st.integers(0, 30), st.integers(-10, 10**11))
    def runs(shape: BatchShape, start_ns: int, steps: int, ahead_ns: int) -> None:
        runs_are_steps(model, shape, start_ns, steps, ahead_ns)

    grows()
    runs()


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
    """An integer above 0, and no smaller with ``more`` of one count."""
    larger = msgspec.structs.replace(shape, **{name: getattr(shape, name) + more})
    least, most = model.step_ns(shape), model.step_ns(larger)
    for given_shape, time in ((shape, least), (larger, most)):
        if type(time) is not int or time <= 0:
            raise ConformanceError(f"a step of {given_shape} takes {time!r}, which is no whole number of ns above 0")
    if least > most:
        raise ConformanceError(f"a step of {shape} takes {least} ns, and with {more} more {name} {most} ns")


def runs_are_steps(model: CostModel, shape: BatchShape, start_ns: int, steps: int, ahead_ns: int) -> None:
    """To the nanosecond, wherever it stops; and the shape stays as it was."""
    before = msgspec.structs.replace(shape)
    for until_ns in (start_ns + ahead_ns, FOREVER):
        found, meant = (
            model.run_ns(shape, start_ns, steps, until_ns),
            by_steps(model, shape, start_ns, steps, until_ns),
        )
        if found != meant:
            raise ConformanceError(f"{steps} steps from {shape} until {until_ns} end at {found}, one by one at {meant}")
    if shape != before:
        raise ConformanceError(f"run_ns changed the shape {before} to {shape}")
