"""Every registered cost model, the built-ins among them, keeps the contract of ``CostModel``; others are caught."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import pytest

from stepwell.core.protocols import BatchShape
from stepwell.core.registry import make
from stepwell.core.testing import ConformanceError, check_cost_model
from stepwell.sim.cost.running import run_by_steps

REGISTERED = sorted(entry_points(group="stepwell.cost_models"), key=lambda entry: entry.name)
NEEDED: Mapping[str, Mapping[str, Any]] = {
    "table": {"decode": {"rows": [1, 9, 70], "columns": [0, 900], "values": [[1, 5], [2, 9], [40, 90]]}}
}
"""Options without which there is no such model."""


def test_the_built_in_cost_models_are_registered() -> None:
    assert {"linear", "roofline", "table"} <= {entry.name for entry in REGISTERED}


@pytest.mark.parametrize("entry", REGISTERED, ids=lambda entry: entry.name)
def test_conforms(entry: EntryPoint) -> None:
    assert entry.load().name == entry.name
    check_cost_model(make("cost_models", entry.name, NEEDED.get(entry.name, {})))


class Broken:
    """Right but for what a subclass of the test spoils."""

    def step_ns(self, shape: BatchShape) -> int:
        return 1_000 + shape.kv_tokens

    def run_ns(self, shape: BatchShape, start_ns: int, steps: int, until_ns: int) -> list[int]:
        return run_by_steps(self.step_ns, shape, start_ns, steps, until_ns)


def careless(self: Broken, shape: BatchShape, start_ns: int, steps: int, until_ns: int) -> list[int]:
    """Right, but the shape is not what it was."""
    ends = run_by_steps(self.step_ns, shape, start_ns, steps, until_ns)
    shape.kv_tokens += 1
    return ends


def spoiled(**methods: Any) -> Any:
    return type("Spoiled", (Broken,), methods)()


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (spoiled(step_ns=lambda self, it: it.kv_tokens), "takes 0, which is no whole number of ns above 0"),
        (spoiled(step_ns=lambda self, it: 10.0), "takes 10.0"),
        (spoiled(step_ns=lambda self, it: max(1, 10**9 - it.swap_pages)), "more swap_pages"),
        (spoiled(run_ns=lambda self, it, start, steps, until: [start] * steps), "one by one at"),
        (spoiled(run_ns=careless), "changed the shape"),
    ],
)
def test_broken_ones_are_caught(model: Any, told: str) -> None:
    with pytest.raises(ConformanceError, match=told):
        check_cost_model(model, examples=300)


def test_one_that_is_not_broken_passes() -> None:
    check_cost_model(Broken(), examples=50)
