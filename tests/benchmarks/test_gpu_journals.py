"""The journals that the GPU script executes are still what their policies decide."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stepwell.benchmarks.gpu.recording import JOURNALS, POLICIES
from stepwell.core.events import Event
from stepwell.core.instructions import Instruction, Preempted
from stepwell.sim.replay import replay


@pytest.mark.parametrize("policy", POLICIES)
def test_every_decision_is_made_again(policy: str) -> None:
    """If not, decisions have changed on purpose: python -m stepwell.benchmarks.gpu.recording."""
    modes: set[str] = set()

    def observe(now_ns: int, events: Sequence[Event], instructions: Sequence[Instruction]) -> None:
        modes.update(each.mode for each in instructions if isinstance(each, Preempted))

    report = replay(JOURNALS / f"{policy}.jsonl", observers=[observe])
    assert report.difference is None
    assert report.unfinished == 0
    assert report.steps > 500
    assert modes, "nobody gives way: pages were to run out"
